// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsroute

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/fivewire/fivewire/altar/internal/cluster"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Options adjusts a [Cluster]. The zero value is right for production.
type Options struct {
	// SubjectPrefix begins all subjects except inboxes, and separates clusters on the same NATS servers. It
	// consists of at most 64 letters, digits, - and _. Empty means "altar".
	SubjectPrefix string

	// Heartbeat is the interval of keep-alive messages of a Host and of both ends of a stream. A
	// peer is treated as failed after four missed heartbeats. Zero means 1 second; the least is 1 ms, the most a day.
	Heartbeat time.Duration

	// MaxUnacked bounds the bytes of a stream in flight, in each direction; one frame more may be sent.
	// Zero means 1 MiB. There are at most 64 frames in flight.
	MaxUnacked int

	// Logger receives errors that no call returns. Nil means slog.Default().
	Logger *slog.Logger
}

// silence is the number of missed heartbeats after which a peer is treated as failed. The receiver
// counts its own ticks instead of elapsed time: after a suspension of its process the peers have
// not missed anything.
const silence = 4

// errLeft reports a call of a closed Cluster.
var errLeft = errors.New("natsroute: cluster: closed")

var validName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// A Cluster connects the Hosts on NATS. It is the HostOptions.Cluster of one Host. All methods are safe for
// concurrent use.
type Cluster struct {
	nc   *nats.Conn
	opts Options

	life context.Context // of the Cluster, not of a call: ended by Close
	stop context.CancelFunc

	mu   sync.Mutex     // held to begin a call, and to end life
	work sync.WaitGroup // calls and the goroutines of streams, which begin in calls
}

var _ cluster.Network = (*Cluster)(nil)

// NewCluster returns a Cluster. The caller keeps ownership of the connection. Close ends the Cluster.
func NewCluster(nc *nats.Conn, opts *Options) (*Cluster, error) {
	if nc == nil {
		return nil, errors.New("natsroute: no connection")
	}
	r := &Cluster{nc: nc}
	if opts != nil {
		r.opts = *opts
	}
	if r.opts.SubjectPrefix == "" {
		r.opts.SubjectPrefix = "altar"
	}
	if !validName.MatchString(r.opts.SubjectPrefix) {
		return nil, fmt.Errorf("natsroute: invalid subject prefix %q", r.opts.SubjectPrefix)
	}
	if r.opts.Heartbeat <= 0 {
		r.opts.Heartbeat = time.Second
	}
	r.opts.Heartbeat = min(max(r.opts.Heartbeat, time.Millisecond), 24*time.Hour)
	if r.opts.MaxUnacked <= 0 {
		r.opts.MaxUnacked = 1 << 20
	}
	if r.opts.Logger == nil {
		r.opts.Logger = slog.Default()
	}
	r.life, r.stop = context.WithCancel(context.Background())
	return r, nil
}

// Close ends the Cluster, its calls and its streams. It waits for all goroutines of the Cluster and is idempotent.
func (r *Cluster) Close() error {
	r.mu.Lock()
	r.stop()
	r.mu.Unlock()
	r.work.Wait()
	return nil
}

// begin lets a call in, which ends with work.Done, unless the Cluster is closed.
func (r *Cluster) begin() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.life.Err() != nil {
		return errLeft
	}
	r.work.Add(1)
	return nil
}

func (r *Cluster) subject(what string) string { return r.opts.SubjectPrefix + "." + what }

// openSubject is where a Host gets the requests to open a stream.
func (r *Cluster) openSubject(host string) string {
	return r.subject("open.") + base64.RawURLEncoding.EncodeToString([]byte(host))
}

// An announcement is the heartbeat of a Host.
type announcement struct {
	Host string `json:"host"`
	Boot string `json:"boot"` // id of its process
	Bye  bool   `json:"bye,omitzero"`
}

// An opening requests a stream, or grants it.
type opening struct {
	Host    string `json:"host"`
	Subject string `json:"subject"` // of the frames to this end
}

// A member is one Host that has joined, and its list of the others.
type member struct {
	r      *Cluster
	self   announcement
	peers  func(ids []string)
	accept func(from string, s io.ReadWriteCloser)
	others map[string]*other
	twin   string // boot of another process with the id of this Host
}

type other struct {
	boot   string
	missed int // heartbeats
}

// Join implements [cluster.Network].
func (r *Cluster) Join(ctx context.Context, id string, peers func(ids []string), accept func(from string, s io.ReadWriteCloser)) error {
	if err := r.begin(); err != nil {
		return err
	}
	defer r.work.Done()
	m := &member{r: r, self: announcement{Host: id, Boot: nuid.Next()}, peers: peers, accept: accept, others: make(map[string]*other)}
	in := make(chan *nats.Msg, 1024)
	for _, what := range []string{"hosts", "hello"} {
		sub, err := r.nc.ChanSubscribe(r.subject(what), in)
		if err != nil {
			return fmt.Errorf("natsroute: %w", err)
		}
		defer func() { _ = sub.Unsubscribe() }() // fails only with the connection
	}
	// Two processes with the ID of one Host are a mistake. A queue group ensures that even then a
	// stream is opened to only one of them.
	sub, err := r.nc.ChanQueueSubscribe(r.openSubject(id), "host", in)
	if err != nil {
		return fmt.Errorf("natsroute: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	r.publish(r.subject("hello"), nil)
	m.announce(false)
	defer m.announce(true)
	m.run(ctx, in)
	return nil
}

// run handles messages until the Host leaves.
func (m *member) run(ctx context.Context, in <-chan *nats.Msg) {
	tick := time.NewTicker(m.r.opts.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.r.life.Done():
			return
		case msg := <-in:
			m.handle(msg)
		case <-tick.C:
			m.announce(false)
			m.age()
		}
	}
}

func (m *member) handle(msg *nats.Msg) {
	switch msg.Subject {
	case m.r.subject("hello"):
		m.announce(false)
	case m.r.subject("hosts"):
		var a announcement
		if err := decode(msg.Data, &a); err != nil {
			m.r.opts.Logger.WarnContext(m.r.life, "natsroute: invalid announcement", "err", err)
			return
		}
		m.note(&a)
	default:
		m.open(msg)
	}
}

// note keeps the heartbeat of another Host.
func (m *member) note(a *announcement) {
	if a.Host == "" {
		return
	}
	if a.Host == m.self.Host {
		m.noteTwin(a)
		return
	}
	o := m.others[a.Host]
	switch {
	case a.Bye && (o == nil || o.boot != a.Boot):
		return
	case a.Bye:
		delete(m.others, a.Host)
		m.notify()
	case o != nil && o.boot == a.Boot:
		o.missed = 0
	default:
		if o != nil { // it has restarted: the streams to it have ended
			delete(m.others, a.Host)
			m.notify()
		}
		m.others[a.Host] = &other{boot: a.Boot}
		m.notify()
	}
}

// noteTwin logs another process with the id of this Host once. Neither reaches the other.
func (m *member) noteTwin(a *announcement) {
	if a.Bye || a.Boot == m.self.Boot || a.Boot == m.twin {
		return
	}
	m.twin = a.Boot
	m.r.opts.Logger.WarnContext(m.r.life, "natsroute: id of this host in use by another process", "host", a.Host)
}

// age removes silent Hosts.
func (m *member) age() {
	isChanged := false
	for id, o := range m.others {
		if o.missed++; o.missed > silence {
			m.r.opts.Logger.InfoContext(m.r.life, "natsroute: silent host removed", "host", id)
			delete(m.others, id)
			isChanged = true
		}
	}
	if isChanged {
		m.notify()
	}
}

func (m *member) notify() { m.peers(slices.Sorted(maps.Keys(m.others))) }

func (m *member) announce(isBye bool) {
	a := m.self
	a.Bye = isBye
	m.r.publish(m.r.subject("hosts"), &a)
}

// publish sends a message without an answer.
func (r *Cluster) publish(subject string, v any) {
	var body []byte
	var err error
	if v != nil {
		body, err = guard.Encode(v)
	}
	if err == nil {
		err = r.nc.Publish(subject, body)
	}
	if err != nil {
		r.opts.Logger.DebugContext(r.life, "natsroute: message not sent", "subject", subject, "err", err)
	}
}

// open accepts a stream.
func (m *member) open(msg *nats.Msg) {
	var o opening
	if err := decode(msg.Data, &o); err != nil || msg.Reply == "" || o.Subject == "" {
		m.r.opts.Logger.WarnContext(m.r.life, "natsroute: invalid request for a stream", "err", err)
		return
	}
	s, err := m.r.newStream()
	if err != nil {
		return // the other side repeats the request
	}
	m.r.publish(msg.Reply, &opening{Host: m.self.Host, Subject: s.sub.Subject})
	s.start(o.Subject)
	m.accept(o.Host, s)
}

// Open implements [cluster.Network].
func (r *Cluster) Open(ctx context.Context, from, to string) (io.ReadWriteCloser, error) {
	if err := r.begin(); err != nil {
		return nil, err
	}
	defer r.work.Done()
	s, err := r.newStream()
	if err != nil {
		return nil, err
	}
	body, err := guard.Encode(&opening{Host: from, Subject: s.sub.Subject})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, silence*r.opts.Heartbeat)
	defer cancel()
	defer context.AfterFunc(r.life, cancel)()
	msg, err := r.nc.RequestWithContext(ctx, r.openSubject(to), body)
	var o opening
	if err == nil {
		err = decode(msg.Data, &o)
	}
	if err == nil && o.Subject == "" {
		err = errors.New("no subject")
	}
	if err != nil {
		_ = s.sub.Unsubscribe()
		return nil, fmt.Errorf("natsroute: open stream to host %q: %w", to, err)
	}
	s.start(o.Subject)
	return s, nil
}

// decode reads JSON of another Host.
func decode(data []byte, dst any) error {
	v, err := strictjson.Check(data, strictjson.Options{})
	if err != nil {
		return err
	}
	return strictjson.Decode(v, dst)
}
