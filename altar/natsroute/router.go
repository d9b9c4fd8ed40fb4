// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsroute

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/internal/cluster"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Options adjusts a [Cluster]. The zero value is right for production.
type Options struct {
	// SubjectPrefix begins all subjects and separates clusters on the same NATS servers. It
	// consists of letters, digits, - and _. Empty means "altar".
	SubjectPrefix string

	// Heartbeat is the interval of keep-alive messages of a Host and of both sides of a call. A
	// peer is treated as failed after four missed heartbeats. Zero means 1 second.
	Heartbeat time.Duration

	// MaxUnacked bounds the bytes of a response in flight; one frame more may be sent. Zero means
	// 1 MiB. There are at most 64 frames in flight.
	MaxUnacked int

	// MaxMessage bounds a message assembled from several NATS messages, in bytes. Zero means 4 MiB.
	MaxMessage int

	// Logger receives errors that no call returns. Nil disables logging.
	Logger *slog.Logger
}

// silence is the number of missed heartbeats after which a peer is treated as failed. The receiver
// counts its own ticks instead of elapsed time: after a suspension of its process the peers have
// not missed anything.
const silence = 4

var validName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// A Cluster forwards calls between Hosts over NATS. It is the [cluster.Cluster] of one Host. All
// methods are safe for concurrent use.
type Cluster struct {
	nc   *nats.Conn
	opts Options

	mu      sync.Mutex
	peers   map[string]*peer // by host id; guarded by mu
	changed chan struct{}    // closed and replaced when the offers change; guarded by mu

	life context.Context // of the Cluster, not of a call: ended by Close
	stop context.CancelFunc
	work sync.WaitGroup
	once sync.Once
}

var _ cluster.Cluster[altar.Message] = (*Cluster)(nil)

// A peer is the last announced state of another Host.
type peer struct {
	offers []cluster.Offer // in order of Runtime ids
	boot   string          // id of that process
	turn   uint64          // rises with every change of the offers
	missed int             // heartbeats
	lost   chan struct{}   // closed when the peer is treated as failed
}

// An announcement lists the offers of a Host.
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
	Digests   []string `json:"digests"` // of the contracts
}

// NewCluster returns a Cluster that follows the offers of other Hosts. The caller keeps ownership
// of the connection. Close ends the Cluster.
func NewCluster(nc *nats.Conn, opts *Options) (*Cluster, error) {
	r := &Cluster{nc: nc, peers: map[string]*peer{}, changed: make(chan struct{})}
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
	if r.opts.MaxUnacked <= 0 {
		r.opts.MaxUnacked = 1 << 20
	}
	if r.opts.MaxMessage <= 0 {
		r.opts.MaxMessage = 4 << 20
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

// Close ends the Cluster. Forwarded calls end with an error. Close waits for all goroutines of the
// Cluster and is idempotent.
func (r *Cluster) Close() error {
	r.once.Do(r.stop)
	r.work.Wait()
	return nil
}

func (r *Cluster) subject(what string) string { return r.opts.SubjectPrefix + "." + what }

func (r *Cluster) callSubject(host string) string {
	return r.subject("call.") + base64.RawURLEncoding.EncodeToString([]byte(host))
}

// hello requests the offers of all Hosts.
func (r *Cluster) hello() {
	if err := r.nc.Publish(r.subject("hello"), nil); err != nil {
		r.opts.Logger.DebugContext(r.life, "natsroute: offer request not sent", "err", err)
	}
}

// listen handles announcements and removes failed peers.
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
				r.opts.Logger.WarnContext(r.life, "natsroute: invalid announcement", "err", err)
				continue
			}
			r.handle(&a)
		case <-tick.C:
			r.mu.Lock()
			for id, p := range r.peers {
				if p.missed++; p.missed > silence {
					r.opts.Logger.InfoContext(r.life, "natsroute: silent host removed", "host", id)
					r.giveUp(id)
				}
			}
			r.mu.Unlock()
		}
	}
}

// alive records a frame of a peer, because its announcements may be queued behind frames.
func (r *Cluster) alive(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.peers[id]; p != nil {
		p.missed = 0
	}
}

// giveUp removes a peer. r.mu must be held.
func (r *Cluster) giveUp(id string) {
	if p := r.peers[id]; p != nil {
		close(p.lost)
		delete(r.peers, id)
		r.noteChange()
	}
}

// noteChange wakes the loops over the offers. r.mu must be held.
func (r *Cluster) noteChange() {
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *Cluster) handle(a *announcement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.peers[a.Host]
	if p != nil && (p.boot == a.Boot) == a.Bye {
		r.giveUp(a.Host) // it has ended or restarted
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
	r.noteChange()
	for _, o := range a.Offers {
		p.offers = append(p.offers, cluster.Offer{HostID: a.Host, RuntimeID: o.Runtime, Contracts: o.Contracts, Digests: o.Digests})
	}
}

// Offers implements [cluster.Cluster].
func (r *Cluster) Offers(ctx context.Context) iter.Seq[[]cluster.Offer] {
	return func(yield func([]cluster.Offer) bool) {
		for ctx.Err() == nil {
			var all []cluster.Offer
			r.mu.Lock()
			for _, id := range slices.Sorted(maps.Keys(r.peers)) {
				all = append(all, r.peers[id].offers...)
			}
			changed := r.changed
			r.mu.Unlock()
			if !yield(all) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}
}

// peerGone returns a channel that is closed when a peer is removed, or nil for an unknown peer.
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

// SessionEnded implements [cluster.Cluster].
func (r *Cluster) SessionEnded(sessionID, reason string) {
	body, err := strictjson.Encode(sessionEnd{sessionID, reason})
	if err == nil {
		err = r.nc.Publish(r.subject("over"), body)
	}
	if err != nil { // the session ends at the other Hosts when it expires
		r.opts.Logger.DebugContext(r.life, "natsroute: session end not sent", "err", err)
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

// Errors of calls with an unknown outcome.
var (
	errGone  = errors.New("natsroute: host removed")
	errLost  = errors.New("natsroute: connection to host lost")
	errEnded = errors.New("natsroute: cluster closed")
)
