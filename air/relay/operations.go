// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/internal/name"
	"github.com/fivewire/fivewire/air/internal/server"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

func (s *Server) servePush(w http.ResponseWriter, req *http.Request, x *call) error {
	to := x.to
	data, err := readBody(w, req, s.opts.Limits.MaxMessage, s.opts.Timing.ReadTimeout)
	if err != nil {
		return err
	}
	if !server.JSONContent(req.Header.Get("Content-Type")) {
		return air.Errorf(air.ErrInvalidEnvelope, "not a content type for envelopes")
	}
	m, err := newMail(data)
	if err != nil {
		return err
	}
	isForeign := s.opts.Directory == nil && !s.isLocal(m.to)
	if to.did != "" && m.to != to.did || name.AIRIDOf(m.to) != to.airID || isForeign {
		return air.Errorf(air.ErrWrongRecipient, "to is not the agent of this mailbox")
	}
	addr, from := "", "" // a verified secret is the sender
	if !x.isAuthenticated() {
		addr, from, m.guest = x.addr, m.from, x.addr
	}
	m.payer = x.principal
	if delay := s.guests.Sender(addr, from); delay > 0 {
		return limited("too many envelopes in this minute", delay)
	}
	seq, err := s.boxes.push(req.Context(), to.airID, m)
	if err != nil {
		return err
	}
	body := strictjson.AppendString([]byte(`{"status":"queued","envelope_id":`), m.id)
	body = strconv.AppendUint(append(body, `,"seq":`...), seq, 10)
	server.WriteJSON(w, http.StatusAccepted, append(body, '}'))
	return nil
}

// limit returns the page size of a request.
func (s *Server) limit(q url.Values, strict bool) (int, error) {
	text := q.Get("limit")
	if text == "" {
		return s.opts.PageSize, nil
	}
	n, err := strconv.Atoi(text)
	switch {
	case err == nil && n >= 1:
		return min(n, maxPage), nil
	case strict:
		return 0, air.Errorf(air.ErrBadRequest, "limit is not a number from 1 to 200")
	}
	return s.opts.PageSize, nil
}

// endCursor is the cursor of the last page: the next round starts at the beginning, with every
// unacknowledged envelope (AIR-D62).
const endCursor = "end"

func parseCursor(text string) (after uint64, ok bool) {
	if text == endCursor {
		return 0, true
	}
	digits, ok := strings.CutPrefix(text, "c")
	after, err := strconv.ParseUint(digits, 10, 64)
	return after, ok && err == nil && "c"+strconv.FormatUint(after, 10) == text
}

func (s *Server) servePull(w http.ResponseWriter, req *http.Request, x *call) error {
	to, q := x.to, req.URL.Query()
	limit, err := s.limit(q, true)
	if err != nil {
		return err
	}
	var after uint64
	if q.Has("since") {
		var ok bool
		if after, ok = parseCursor(q.Get("since")); ok && after > 0 {
			ok, err = s.boxes.issued(req.Context(), to.airID, after)
		}
		if err != nil {
			return err
		}
		if !ok {
			return air.Errorf(air.ErrBadRequest, "since is no cursor of this mailbox")
		}
	}
	mail, more, err := s.boxes.read(req.Context(), to.airID, after, limit)
	if err != nil {
		return err
	}
	found := len(mail)
	mail, size, hold, err := s.reservePage(x, mail)
	if err != nil {
		return err
	}
	defer hold.Release()
	more = more || len(mail) < found
	if err := s.boxes.hand(req.Context(), to.airID, mail); err != nil {
		return err
	}
	body := append(make([]byte, 0, size), `{"envelopes":[`...)
	for i, rec := range mail {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, mailOf(rec).data...)
	}
	cursor := endCursor
	if more {
		cursor = "c" + strconv.FormatUint(mail[len(mail)-1].Seq, 10)
	}
	body = append(append(append(body, `],"cursor":"`...), cursor...), `","has_more":`...)
	server.WriteJSON(w, http.StatusOK, append(strconv.AppendBool(body, more), '}'))
	return nil
}

// reservePage charges the memory of a page with these envelopes, or with the first ones for which there is room, which it returns
// with the size of the page.
func (s *Server) reservePage(x *call, mail []store.Record) (page []store.Record, size int64, hold budget.Hold, err error) {
	scope := s.output.Scope(x.principal, "")
	for {
		size = 64
		for _, rec := range mail {
			size += int64(len(rec.Value)) + 1
		}
		if hold, err = scope.Reserve(budget.Memory, size); err == nil {
			return mail, size, hold, nil
		}
		if len(mail) <= 1 {
			return nil, 0, hold, overBudget(err)
		}
		mail = slices.Clone(mail[:len(mail)/2]) // releases the memory of the rest
	}
}

func wantsStream(req *http.Request) bool {
	if req.URL.Query().Get("stream") == "1" {
		return true
	}
	for _, accepted := range strings.Split(req.Header.Get("Accept"), ",") {
		if t, _ := httpx.MediaType(accepted); t == "text/event-stream" {
			return true
		}
	}
	return false
}

func (s *Server) serveDeployedPull(w http.ResponseWriter, req *http.Request, x *call) error {
	to, q := x.to, req.URL.Query()
	after, err := strconv.ParseUint(q.Get("since"), 10, 63)
	if err != nil {
		after = 0
	}
	if after > 0 {
		// A cursor that this relay cannot have issued, for example after the loss of its mail, is
		// read as 0, so that no envelope is skipped (AIR-D62).
		ok, err := s.boxes.issued(req.Context(), to.airID, after)
		if err != nil {
			return err
		}
		if !ok {
			after = 0
		}
	}
	if wantsStream(req) {
		return s.serveStream(w, req, x, after)
	}
	limit, err := s.limit(q, false)
	if err != nil {
		return err
	}
	mail, more, err := s.boxes.read(req.Context(), to.airID, after, limit)
	if err != nil {
		return err
	}
	found := len(mail)
	mail, _, hold, err := s.reservePage(x, mail)
	if err != nil {
		return err
	}
	defer hold.Release()
	more = more || len(mail) < found
	if err := s.boxes.hand(req.Context(), to.airID, mail); err != nil {
		return err
	}
	did := cmp.Or(to.did, to.name)
	body := strictjson.AppendString([]byte(`{"recipient_did":`), did)
	body = append(body, `,"messages":[`...)
	for i, rec := range mail {
		if i > 0 {
			body = append(body, ',')
		}
		body = mailOf(rec).appendMessage(body)
		after = rec.Seq
	}
	body = strconv.AppendUint(append(body, `],"cursor":`...), after, 10)
	body = strconv.AppendBool(append(body, `,"has_more":`...), more)
	server.WriteJSON(w, http.StatusOK, append(body, '}'))
	return nil
}

func (s *Server) serveAck(w http.ResponseWriter, req *http.Request, x *call) error {
	data, err := x.body, error(nil)
	if data == nil {
		if data, err = readBody(w, req, maxAnswer, s.opts.Timing.ReadTimeout); err != nil {
			return err
		}
	}
	v, err := strictjson.Check(data, strictjson.Options{MaxDepth: maxDepth})
	if err != nil || !v.IsObject() || !v.Get("envelope_ids").IsArray() || !server.JSONContent(req.Header.Get("Content-Type")) {
		return air.Errorf(air.ErrBadRequest, "want an object with a list envelope_ids")
	}
	var ids []string
	for e := v.Get("envelope_ids").Elements(); e.Next(); {
		id, ok := e.Value.Text()
		if !ok {
			return air.Errorf(air.ErrBadRequest, "envelope_ids holds something else than strings")
		}
		ids = append(ids, id)
	}
	if len(ids) < 1 || len(ids) > maxAck {
		return air.Errorf(air.ErrBadRequest, "want 1 to 500 envelope_ids")
	}
	n, err := s.boxes.ack(req.Context(), x.to.airID, ids)
	if err != nil {
		return err
	}
	body := strconv.AppendInt([]byte(`{"status":"acked","acked_count":`), int64(n), 10)
	body = strconv.AppendInt(append(body, `,"requested":`...), int64(len(ids)), 10)
	server.WriteJSON(w, http.StatusOK, append(body, '}'))
	return nil
}
