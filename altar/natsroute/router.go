// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsroute

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Options adjusts a [Cluster]. The zero value is right for production.
type Options struct {
	// SubjectPrefix tells meshes of Hosts on the same servers apart. It begins all
	// subjects, and consists of letters, digits, - and _. Empty means "altar".
	SubjectPrefix string

	// Heartbeat is how often a Host shows that it is alive, and both sides of a
	// call that they are. Who is silent for four of them is given up. Zero
	// means a second.
	Heartbeat time.Duration

	// MaxUnacked is how many messages of a stream may be under way. Zero means 64.
	MaxUnacked int

	// MaxMessage bounds one message that is put together from several of NATS,
	// in bytes. Zero means altar.DefaultMaxMessage.
	MaxMessage int

	// Logger receives what no error reports. Nil is silent.
	Logger *slog.Logger
}

// silence is after how many heartbeats without a sign of life somebody is given
// up. They are counted as they come and not by the clock: to a process that stood
// still for a while, for whatever reason, it was not the others that were silent.
const silence = 4

var validName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// A Cluster carries calls between Hosts over NATS. It is the Remote of one Host.
// All its methods may be called from any number of goroutines.
type Cluster struct {
	nc   *nats.Conn
	opts Options

	mu    sync.Mutex
	peers map[string]*peer // by host id; guarded by mu

	life context.Context // of this Router, not of a call: ended by Close
	stop context.CancelFunc
	work sync.WaitGroup
	once sync.Once
}

var _ altar.Cluster = (*Cluster)(nil)

// A peer is another Host, as it was last heard of.
type peer struct {
	offers []altar.RuntimeOffer // in order of Runtime ids
	boot   string               // of that process
	turn   uint64               // rises with every change of the offers
	missed int                  // heartbeats
	lost   chan struct{}        // closed when it is given up
}

// An announcement says what a Host offers.
type announcement struct {
	Host   string    `json:"host"`
	Boot   string    `json:"boot"`
	Turn   uint64    `json:"turn"`
	Full   bool      `json:"full"` // offers are listed
	Bye    bool      `json:"bye"`
	Offers []offered `json:"offers,omitempty"`
}

type offered struct {
	Runtime   string   `json:"runtime"`
	Contracts []string `json:"contracts"`
}

// NewCluster returns a Router that listens to what other Hosts offer. The connection
// stays the caller's; Close ends the rest.
func NewCluster(nc *nats.Conn, opts *Options) (*Cluster, error) {
	r := &Cluster{nc: nc, peers: map[string]*peer{}}
	if opts != nil {
		r.opts = *opts
	}
	if r.opts.SubjectPrefix == "" {
		r.opts.SubjectPrefix = "altar"
	}
	if !validName.MatchString(r.opts.SubjectPrefix) {
		return nil, fmt.Errorf("natsroute: name %q", r.opts.SubjectPrefix)
	}
	if r.opts.Heartbeat <= 0 {
		r.opts.Heartbeat = time.Second
	}
	if r.opts.MaxUnacked <= 0 {
		r.opts.MaxUnacked = 64
	}
	if r.opts.MaxMessage <= 0 {
		r.opts.MaxMessage = altar.DefaultMaxMessage
	}
	if r.opts.Logger == nil {
		r.opts.Logger = slog.New(slog.DiscardHandler)
	}
	r.life, r.stop = context.WithCancel(context.Background())
	received := make(chan *nats.Msg, 1024)
	sub, err := nc.ChanSubscribe(r.subject("offers"), received)
	if err != nil {
		r.stop()
		return nil, fmt.Errorf("natsroute: %w", err)
	}
	r.work.Go(func() {
		defer func() { _ = sub.Unsubscribe() }() // fails only with the connection
		r.listen(received)
	})
	r.hello()
	return r, nil
}

// Close ends the Router. Calls that run over it end with an error, and it
// returns when no goroutine of it is left.
func (r *Cluster) Close() error {
	r.once.Do(r.stop)
	r.work.Wait()
	return nil
}

func (r *Cluster) subject(what string) string { return r.opts.SubjectPrefix + "." + what }

func (r *Cluster) callSubject(host string) string {
	return r.subject("call.") + base64.RawURLEncoding.EncodeToString([]byte(host))
}

// hello asks all Hosts to say what they offer.
func (r *Cluster) hello() {
	if err := r.nc.Publish(r.subject("hello"), nil); err != nil {
		r.opts.Logger.Debug("natsroute: hello", "err", err)
	}
}

// listen takes in announcements and gives up who is silent.
func (r *Cluster) listen(received <-chan *nats.Msg) {
	tick := time.NewTicker(r.opts.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-r.life.Done():
			r.mu.Lock()
			for id := range r.peers {
				r.giveUp(id)
			}
			r.mu.Unlock()
			return
		case m := <-received:
			var a announcement
			if err := decode(m.Data, &a); err != nil {
				r.opts.Logger.Warn("natsroute: announcement", "err", err)
				continue
			}
			r.handle(&a)
		case <-tick.C:
			r.mu.Lock()
			for id, p := range r.peers {
				if p.missed++; p.missed > silence {
					r.opts.Logger.Info("natsroute: a host is silent", "host", id)
					r.giveUp(id)
				}
			}
			r.mu.Unlock()
		}
	}
}

// alive notes a sign of life besides announcements, which may be stuck behind it.
func (r *Cluster) alive(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.peers[id]; p != nil {
		p.missed = 0
	}
}

// giveUp forgets a peer. The lock is held.
func (r *Cluster) giveUp(id string) {
	if p := r.peers[id]; p != nil {
		close(p.lost)
		delete(r.peers, id)
	}
}

func (r *Cluster) handle(a *announcement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.peers[a.Host]
	if p != nil && p.boot != a.Boot && !a.Bye || p != nil && p.boot == a.Boot && a.Bye {
		r.giveUp(a.Host) // it has ended, or begun anew
		p = nil
	}
	switch {
	case a.Bye:
		return
	case p == nil && !a.Full, p != nil && !a.Full && p.turn != a.Turn:
		r.hello()
		return
	case p == nil:
		p = &peer{boot: a.Boot, lost: make(chan struct{})}
		r.peers[a.Host] = p
	}
	p.missed = 0
	if !a.Full || a.Turn < p.turn {
		return
	}
	p.turn, p.offers = a.Turn, nil
	for _, o := range a.Offers {
		p.offers = append(p.offers, altar.RuntimeOffer{HostID: a.Host, RuntimeID: o.Runtime, Contracts: o.Contracts})
	}
}

// Offers implements [altar.Cluster].
func (r *Cluster) Offers(contract string) []altar.RuntimeOffer {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []altar.RuntimeOffer
	for _, id := range slices.Sorted(maps.Keys(r.peers)) {
		for _, o := range r.peers[id].offers {
			if slices.Contains(o.Contracts, contract) {
				all = append(all, o)
			}
		}
	}
	return all
}

// peerGone returns what is closed when a Host is given up, or nil if it is not
// known.
func (r *Cluster) peerGone(id string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.peers[id]; p != nil {
		return p.lost
	}
	return nil
}

type sessionEnd struct {
	Session string `json:"session"`
	Reason  string `json:"reason"`
}

// SessionEnded implements [altar.Cluster].
func (r *Cluster) SessionEnded(sessionID, reason string) {
	body, err := strictjson.Encode(sessionEnd{sessionID, reason})
	if err == nil {
		err = r.nc.Publish(r.subject("over"), body)
	}
	if err != nil { // it ends there by itself, later
		r.opts.Logger.Debug("natsroute: session over", "err", err)
	}
}

// decode reads JSON of another Host.
func decode(data []byte, dst any) error {
	v, err := strictjson.Check(data, strictjson.Options{})
	if err != nil {
		return err
	}
	return strictjson.Decode(v, dst)
}

// The errors of calls whose fate nobody knows.
var (
	errGone  = errors.New("natsroute: the other host is gone")
	errLost  = errors.New("natsroute: the connection to the other host was lost")
	errEnded = errors.New("natsroute: the router is closed")
)
