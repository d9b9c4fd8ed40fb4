// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// Error codes of the JetStream API that mean something here.
const (
	codeNotAvailable   = 10008 // no leader now
	codeResources      = 10023
	codeMemory         = 10028
	codeNoMessage      = 10037
	codeNoSequence     = 10043
	codeStorage        = 10047
	codeTooLong        = 10054
	codeDeleteFailed   = 10057
	codeNoStream       = 10059
	codeWrongLast      = 10071
	codeStoreFailed    = 10077
	codeIDInProcess    = 10158
	codeWrongLastNow   = 10164 // another write of the subject is in process
	requestHeader      = "Nats-Msg-Id"
	expectSeqHeader    = "Nats-Expected-Last-Subject-Sequence"
	expectSubjHeader   = "Nats-Expected-Last-Subject-Sequence-Subject"
	expectStreamHeader = "Nats-Expected-Stream"
	ttlHeader          = "Nats-TTL"
	rollupHeader       = "Nats-Rollup"
)

// errConflict is the answer of the servers to a write whose condition fails.
var errConflict = errors.New("natsstore: condition failed")

// An apiError is an answer of JetStream.
type apiError struct {
	code   int
	status int
	text   string
}

func (e *apiError) Error() string { return fmt.Sprintf("%s (%d)", e.text, e.code) }

// retry marks an error after which another attempt may succeed.
type retry struct{ error }

func (r retry) Unwrap() error { return r.error }

// temporary marks err if it is the kind that passes when a server comes back or
// a leader is found.
func temporary(err error) error {
	if err == nil {
		return nil
	}
	var api *apiError
	var js *jetstream.APIError
	var conn net.Error
	switch {
	case errors.As(err, &api) && (api.status == 503 && api.code == codeNotAvailable || api.code == codeIDInProcess || api.code == codeWrongLastNow),
		errors.As(err, &js) && js.Code == 503 && js.ErrorCode == codeNotAvailable,
		errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrTimeout),
		errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrDisconnected), errors.Is(err, nats.ErrStaleConnection),
		errors.Is(err, nats.ErrConnectionReconnecting), errors.Is(err, context.DeadlineExceeded),
		errors.As(err, &conn): // a write to a server that reads nothing
		return retry{err}
	}
	return err
}

// attemptTimeout limits the first attempt of a call. It is short, since a server that has just
// crashed never responds.
const attemptTimeout = 2 * time.Second

// persist calls f until it succeeds, fails permanently, or the timeout passes. Each attempt has a
// separate context. A connection that is being made keeps requests for as long as a dial may take, so
// that no attempt without a connection begins later than that before the end.
func (s *Store) persist(ctx context.Context, f func(ctx context.Context) error) error {
	deadline, patience := time.Now().Add(s.opts.CallTimeout), attemptTimeout
	lastDial := deadline.Add(-min(s.nc.Opts.Timeout, s.opts.CallTimeout/2))
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		attempt, cancel := context.WithDeadline(ctx, earlier(deadline, time.Now().Add(patience)))
		err := f(attempt)
		if attempt.Err() != nil { // a long value on a slow connection needs more time
			patience *= 2
		}
		cancel()
		if ctx.Err() != nil && err != nil {
			return cause(ctx)
		}
		var retryable retry
		switch {
		case errors.Is(err, nats.ErrConnectionClosed):
			return fmt.Errorf("%w: %w", store.ErrClosed, err)
		case !errors.As(err, &retryable):
			return err
		case time.Until(deadline) <= pause, isOffline(retryable.error) && time.Now().After(lastDial):
			return fmt.Errorf("natsstore: no answer for %v: %w: %w", s.opts.CallTimeout, store.ErrUnknown, retryable.error)
		}
		select {
		case <-ctx.Done():
			return cause(ctx)
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// isOffline reports an error of a request that no connection took.
func isOffline(err error) bool {
	return errors.Is(err, nats.ErrReconnectBufExceeded) || errors.Is(err, nats.ErrDisconnected) || errors.Is(err, nats.ErrConnectionReconnecting)
}

// cause distinguishes a call that ended by its context from one that ended by Close.
func cause(ctx context.Context) error {
	if err := context.Cause(ctx); errors.Is(err, store.ErrClosed) {
		return err
	}
	return ctx.Err()
}

// ask sends one request and returns the answer, if it is not an error.
func (s *Store) ask(ctx context.Context, msg *nats.Msg) (strictjson.Value, error) {
	res, err := s.nc.RequestMsgWithContext(ctx, msg)
	if err != nil {
		return nil, temporary(err)
	}
	v, err := strictjson.Check(res.Data, strictjson.Options{})
	if err != nil {
		return nil, fmt.Errorf("natsstore: answer of the server: %w", err)
	}
	if e := v.Get("error"); !e.Absent() {
		api := &apiError{code: number[int](e.Get("err_code")), status: number[int](e.Get("code"))}
		api.text, _ = e.Get("description").Text()
		return nil, temporary(api)
	}
	return v, nil
}

// number reads a number of the API; zero if there is none.
func number[T int | uint64](v strictjson.Value) T {
	n, _ := strconv.ParseUint(string(v), 10, 64)
	return T(n)
}

// call is ask with the retries, for requests that may be repeated.
func (s *Store) call(ctx context.Context, subject string, body []byte) (v strictjson.Value, err error) {
	err = s.persist(ctx, func(ctx context.Context) (err error) {
		v, err = s.ask(ctx, &nats.Msg{Subject: subject, Data: body})
		return err
	})
	return v, err
}

// hasCode reports an answer with one of these codes.
func hasCode(err error, codes ...int) bool {
	var api *apiError
	if !errors.As(err, &api) {
		return false
	}
	for _, code := range codes {
		if api.code == code {
			return true
		}
	}
	return false
}

// A condition is the requirement of a write on the stored messages.
type condition struct {
	subject string // checked subject; empty for no condition
	seq     uint64 // of the last message there; 0 for none
}

// publish stores one message and returns its number, or errConflict. It is repeated until a
// response arrives: the servers detect the duplicate by the id of the message.
func (s *Store) publish(ctx context.Context, a *area, subject string, header nats.Header, value []byte, c condition) (uint64, error) {
	id := nuid.Next()
	if header == nil {
		header = nats.Header{}
	}
	header[requestHeader] = []string{id}
	header[expectStreamHeader] = []string{a.name}
	if c.subject != "" {
		header[expectSeqHeader] = []string{strconv.FormatUint(c.seq, 10)}
		if c.subject != subject {
			header[expectSubjHeader] = []string{c.subject}
		}
	}
	header[sumHeader] = []string{sumOf(subject, header, value)}
	msg := &nats.Msg{Subject: subject, Header: header, Data: value}
	highest := a.highest.Load()
	var seq uint64
	unclear := false // an attempt got no answer
	err := s.persist(ctx, func(ctx context.Context) error {
		if s.nc.IsReconnecting() { // the connection may send it much later, when the servers have forgotten its id
			return retry{nats.ErrConnectionReconnecting}
		}
		v, err := s.ask(ctx, msg)
		switch {
		case err == nil:
			seq = number[uint64](v.Get("seq"))
			return nil
		case hasCode(err, codeWrongLast) && unclear:
			// An earlier attempt may have made this change.
			last, err := s.get(ctx, a, lastOf(subject))
			switch {
			case err != nil:
				return err
			case last != nil && last.header.Get(requestHeader) == id:
				seq = last.seq
				return nil
			}
			return errors.New("natsstore: the write got no answer, and another one followed: it may have been made or not")
		case hasCode(err, codeWrongLast):
			return errConflict
		case hasCode(err, codeTooLong):
			return fmt.Errorf("%w: %w", store.ErrInvalid, err)
		}
		if !hasCode(err, codeIDInProcess, codeWrongLastNow, codeNotAvailable) {
			unclear = true
		}
		return err
	})
	if err != nil {
		return seq, err
	}
	if seq <= highest { // it was given to another message before
		return 0, s.lose(&store.LossError{Path: a.name, Have: seq - 1, Want: highest})
	}
	a.note(seq)
	return seq, nil
}

// A stored is a message of an area.
type stored struct {
	subject string
	seq     uint64
	at      int64 // when it was stored, by the clock of the servers
	header  nats.Header
	value   []byte
}

// A query selects one message.
type query struct {
	seq        uint64 // that number, or the first from there with next
	last, next string // subjects
}

func lastOf(subject string) query { return query{last: subject} }

func (q query) body(batch int) []byte {
	b := []byte{'{'}
	if q.last != "" {
		b = append(b, `"last_by_subj":`...)
		b = strictjson.AppendString(b, q.last)
		return append(b, '}')
	}
	b = append(b, `"seq":`...)
	b = strconv.AppendUint(b, q.seq, 10)
	if q.next != "" {
		b = append(b, `,"next_by_subj":`...)
		b = strictjson.AppendString(b, q.next)
	}
	if batch > 0 {
		b = append(b, `,"batch":`...)
		b = strconv.AppendInt(b, int64(batch), 10)
		b = append(b, `,"max_bytes":`...)
		b = strconv.AppendInt(b, batchBytes, 10)
	}
	return append(b, '}')
}

// fetch is get with the retries.
func (s *Store) fetch(ctx context.Context, a *area, q query) (m *stored, err error) {
	err = s.persist(ctx, func(ctx context.Context) (err error) {
		m, err = s.get(ctx, a, q)
		return err
	})
	return m, err
}

// get returns a message, or nil if there is none. It asks the leader, unless one
// server is all there is: what a replica knows may be old.
func (s *Store) get(ctx context.Context, a *area, q query) (*stored, error) {
	if a.alone.Load() {
		res, err := s.nc.RequestWithContext(ctx, "$JS.API.DIRECT.GET."+a.name, q.body(0))
		if err != nil {
			return nil, temporary(err)
		}
		return checked(a, res)
	}
	v, err := s.ask(ctx, &nats.Msg{Subject: "$JS.API.STREAM.MSG.GET." + a.name, Data: q.body(0)})
	if hasCode(err, codeNoMessage) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m, err := message(v.Get("message"))
	if err != nil {
		return nil, err
	}
	return m, m.check(a)
}

// checked is direct with a check of the message.
func checked(a *area, res *nats.Msg) (*stored, error) {
	m, err := direct(res)
	if err != nil || m == nil {
		return nil, err
	}
	return m, m.check(a)
}

// direct reads the answer to the direct way of reading.
func direct(res *nats.Msg) (*stored, error) {
	switch status := res.Header.Get("Status"); status {
	case "":
	case "404":
		return nil, nil
	default:
		return nil, fmt.Errorf("natsstore: answer of the server: status %s", status)
	}
	m := &stored{subject: res.Header.Get(nats.JSSubject), header: res.Header, value: res.Data}
	at, err := time.Parse(time.RFC3339Nano, res.Header.Get(nats.JSTimeStamp))
	if err != nil {
		return nil, fmt.Errorf("natsstore: answer of the server: %w", err)
	}
	m.at = at.UnixNano()
	m.seq, err = strconv.ParseUint(res.Header.Get(nats.JSSequence), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("natsstore: answer of the server: %w", err)
	}
	return m, nil
}

// message reads a message as the leader tells it.
func message(v strictjson.Value) (*stored, error) {
	m := &stored{seq: number[uint64](v.Get("seq"))}
	m.subject, _ = v.Get("subject").Text()
	text, _ := v.Get("time").Text()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return nil, fmt.Errorf("natsstore: answer of the server: %w", err)
	}
	m.at = at.UnixNano()
	if m.value, err = bytesOf(v.Get("data")); err != nil {
		return nil, err
	}
	header, err := bytesOf(v.Get("hdrs"))
	if err != nil {
		return nil, err
	}
	if len(header) > 0 {
		if m.header, err = nats.DecodeHeadersMsg(header); err != nil {
			return nil, fmt.Errorf("natsstore: answer of the server: %w", err)
		}
	}
	return m, nil
}

func bytesOf(v strictjson.Value) ([]byte, error) {
	if v.Absent() {
		return nil, nil
	}
	if len(v) < 2 || v[0] != '"' {
		return nil, errors.New("natsstore: answer of the server: no text where bytes belong")
	}
	// Base64 has nothing that JSON escapes.
	text := v[1 : len(v)-1]
	out := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Decode(out, text)
	if err != nil {
		return nil, fmt.Errorf("natsstore: answer of the server: %w", err)
	}
	return out[:n], nil
}

// An areaInfo is the state of an area as its leader reports it.
type areaInfo struct {
	now      int64 // the clock of the leader
	replicas int
	lastSeq  uint64
	messages uint64
	lost     uint64 // bytes that the server found damaged and omitted
	total    int    // subjects that match
	limit    int    // subjects that one answer names at most
	subjects []string
}

// info asks the leader for the state of a, with the subjects that match filter
// from the offset on, if it is not empty.
func (s *Store) info(ctx context.Context, a *area, filter string, offset int) (*areaInfo, error) {
	var body []byte
	if filter != "" {
		body = append(body, `{"subjects_filter":`...)
		body = strictjson.AppendString(body, filter)
		body = append(body, `,"offset":`...)
		body = strconv.AppendInt(body, int64(offset), 10)
		body = append(body, '}')
	}
	v, err := s.call(ctx, "$JS.API.STREAM.INFO."+a.name, body)
	if err != nil {
		return nil, fmt.Errorf("natsstore: stream %s: %w", a.name, err)
	}
	text, _ := v.Get("ts").Text()
	now, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return nil, fmt.Errorf("natsstore: answer of the server: %w", err)
	}
	state := v.Get("state")
	i := &areaInfo{
		now:      now.UnixNano(),
		replicas: number[int](v.Get("config").Get("num_replicas")),
		lastSeq:  number[uint64](state.Get("last_seq")),
		messages: number[uint64](state.Get("messages")),
		lost:     number[uint64](state.Get("lost").Get("bytes")),
		total:    number[int](v.Get("total")),
		limit:    number[int](v.Get("limit")),
	}
	for m := state.Get("subjects").Members(); m.Next(); {
		i.subjects = append(i.subjects, string(m.Name))
	}
	return i, nil
}

// remove deletes the message with that number. A missing message is no error.
func (s *Store) remove(ctx context.Context, a *area, seq uint64) error {
	_, err := s.call(ctx, "$JS.API.STREAM.MSG.DELETE."+a.name, fmt.Appendf(nil, `{"seq":%d,"no_erase":true}`, seq))
	if hasCode(err, codeNoMessage, codeNoSequence, codeDeleteFailed) {
		// Error texts vary, so the existence of the message decides.
		m, getErr := s.fetch(ctx, a, query{seq: seq})
		if getErr != nil {
			return getErr
		}
		if m == nil {
			return nil
		}
	}
	return err
}

const purgeAPI = "$JS.API.STREAM.PURGE."

// purge removes the messages that match filter and have a number below seq.
func (s *Store) purge(ctx context.Context, a *area, filter string, seq uint64) error {
	_, err := s.call(ctx, purgeAPI+a.name, purgeBody(filter, seq))
	return err
}

func purgeBody(filter string, seq uint64) []byte {
	body := strictjson.AppendString([]byte(`{"filter":`), filter)
	return fmt.Appendf(body, `,"seq":%d}`, seq)
}
