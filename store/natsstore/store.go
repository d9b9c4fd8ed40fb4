// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/store"
)

// Options adjusts a [Store]. The zero value is right for production.
type Options struct {
	// StreamPrefix tells several stores on the same servers apart. It begins the names
	// of streams and subjects, and consists of letters, digits, - and _. Empty
	// means "fivewire".
	StreamPrefix string

	// Replicas is the number of servers that store each byte. Zero keeps the current number; a new
	// store then gets 3 in a cluster and 1 on a single server.
	Replicas int

	// CallTimeout bounds how long one call tries to reach the servers, the choice
	// of a new leader included. It then ends with [store.ErrUnknown]. Zero means 10 seconds; the
	// most is 45.
	CallTimeout time.Duration

	// SweepInterval is how often one of the processes that share the store removes
	// records that expired. Zero means 10 minutes, a negative one never. The minimum is 10 ms.
	SweepInterval time.Duration

	// ConnOptions are further options of the connection that Open makes: credentials,
	// TLS, the handlers of the user.
	ConnOptions []nats.Option

	// Logger receives what no error reports, such as a failed sweep. Nil means slog.Default().
	Logger *slog.Logger

	// MarkFile is the file of the high-water mark: the highest position and revision given by this
	// process. [New] refuses servers whose data ends before it with [store.LossError].
	// Package embedded keeps one in its folder. Empty means none.
	MarkFile string

	// AcceptLoss opens a store whose data ends before the mark, and logs what is lost. Positions and
	// revisions that were given before are not given again.
	AcceptLoss bool

	// lingers is expireLingers, or less in tests.
	lingers time.Duration

	// clock is localClock, or another one in tests.
	clock func() (steady, wall int64)
}

const (
	// dedupeWindow is how long the servers know the id of a message that was
	// sent. A call gives up well before, so that what it repeats is known.
	dedupeWindow = time.Minute
	maxTimeout   = 45 * time.Second

	minSweep = 10 * time.Millisecond

	// overhead is what the headers of a message take at most.
	overhead = 4 << 10

	// closeGrace is how long Close waits for calls that run.
	closeGrace = 5 * time.Second
)

var validName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// A Store keeps its state in NATS JetStream. [Open] or [New] makes one. All its
// methods may be called from any number of goroutines, and any number of
// processes may open the same store.
type Store struct {
	nc    *nats.Conn
	owned bool
	opts  Options
	js    jetstream.JetStream

	kv, log    *area
	wakePrefix string
	clock      clock
	entries    facts[int64]      // when a revision expires; 0 never
	records    facts[recordFact] // what a position was given
	wakes      wakes

	mu     sync.Mutex
	closed bool           // guarded by mu
	calls  sync.WaitGroup // calls that run; Add under mu only while not closed

	lost atomic.Pointer[error] // a loss found while the store is open; later calls return it

	life context.Context // of this store, not of a call: ended by Close
	stop context.CancelFunc
	work sync.WaitGroup // goroutines of the store
}

var _ store.Store = (*Store)(nil)

// An area is one JetStream stream.
type area struct {
	name   string // of the JetStream stream
	prefix string // of its subjects, with the last dot

	highest atomic.Uint64 // the highest number that this process has read or stored

	// alone is set while one server keeps the area. Then every direct read is current; otherwise
	// only the leader may be read.
	alone atomic.Bool
}

// Open connects to servers, a list of URLs divided by commas, and opens the
// store there. Close ends the connection.
func Open(ctx context.Context, servers string, opts *Options) (*Store, error) {
	var o []nats.Option
	if opts != nil {
		o = opts.ConnOptions
	}
	if servers == "" && len(o) == 0 { // an option may name a server in the process
		return nil, fmt.Errorf("natsstore: connect: %w: no URL of a server", store.ErrInvalid)
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("natsstore: connect: %w", context.Cause(ctx))
	}
	nc, err := connect(ctx, servers, append(DefaultConnOptions(), o...))
	if err != nil {
		return nil, fmt.Errorf("natsstore: connect: %w", err)
	}
	s, err := New(ctx, nc, opts)
	if err != nil {
		nc.Close()
		return nil, err
	}
	s.owned = true
	return s, nil
}

// connect returns at the end of ctx, also while a server is silent. A connection that is made later is closed.
func connect(ctx context.Context, servers string, opts []nats.Option) (*nats.Conn, error) {
	var nc *nats.Conn
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		nc, err = nats.Connect(servers, opts...)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		go func() {
			<-done
			nc.Close() // also nil
		}()
		return nil, context.Cause(ctx)
	}
	if _, ok := errors.AsType[*url.Error](err); ok { // its text has the password
		err = fmt.Errorf("%w: malformed URL of a server", store.ErrInvalid)
	}
	return nc, err
}

// DefaultConnOptions returns the options with which Open connects, for callers that connect
// themselves: reconnects are not limited, a stopped server is detected within seconds, and no
// message is buffered while disconnected, since its caller may have received an error by then.
func DefaultConnOptions() []nats.Option {
	return []nats.Option{
		nats.Name("fivewire store"),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 300*time.Millisecond),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(3 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.Timeout(3 * time.Second),
		// A write to a server that reads nothing would keep all others for a minute.
		nats.FlusherTimeout(2 * time.Second),
	}
}

// New opens the store on the servers of nc, which stays the caller's: Close
// leaves it open. The options of [DefaultConnOptions] suit it best.
func New(ctx context.Context, nc *nats.Conn, opts *Options) (*Store, error) {
	if nc == nil {
		return nil, fmt.Errorf("natsstore: %w: no connection", store.ErrInvalid)
	}
	s := &Store{nc: nc}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.StreamPrefix == "" {
		s.opts.StreamPrefix = "fivewire"
	}
	if !validName.MatchString(s.opts.StreamPrefix) {
		return nil, fmt.Errorf("natsstore: name %q: %w", s.opts.StreamPrefix, store.ErrInvalid)
	}
	if s.opts.CallTimeout <= 0 {
		s.opts.CallTimeout = 10 * time.Second
	}
	s.opts.CallTimeout = min(s.opts.CallTimeout, maxTimeout)
	s.opts.SweepInterval = max(option.Duration(s.opts.SweepInterval, 10*time.Minute), minSweep)
	s.opts.Logger = cmp.Or(s.opts.Logger, slog.Default())
	if s.opts.lingers == 0 {
		s.opts.lingers = expireLingers
	}
	if s.clock.read = s.opts.clock; s.clock.read == nil {
		s.clock.read = localClock()
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("natsstore: %w", err)
	}
	s.js = js
	s.kv = &area{name: s.opts.StreamPrefix + "_kv", prefix: s.opts.StreamPrefix + ".kv."}
	s.log = &area{name: s.opts.StreamPrefix + "_log", prefix: s.opts.StreamPrefix + ".log."}
	s.wakePrefix = s.opts.StreamPrefix + ".wake."
	if err := s.setUp(ctx); err != nil {
		return nil, err
	}
	if err := s.compareMark(ctx); err != nil {
		return nil, fmt.Errorf("natsstore: high-water mark: %w", err)
	}
	s.life, s.stop = context.WithCancel(context.Background())
	if err := s.wakes.start(s); err != nil {
		s.stop()
		return nil, fmt.Errorf("natsstore: %w", err)
	}
	s.work.Go(s.attend)
	if s.opts.MarkFile != "" {
		s.work.Go(s.keepMark)
	}
	return s, nil
}

// setUp makes the two streams, or takes them as they are.
func (s *Store) setUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.CallTimeout)
	defer cancel()
	for _, cfg := range []jetstream.StreamConfig{
		{
			Name:        s.kv.name,
			Description: "Fivewire: values under keys",
			Subjects:    []string{s.kv.prefix + ">"},
		},
		{
			Name:        s.log.name,
			Description: "Fivewire: logs",
			Subjects:    []string{s.log.prefix + ">"},
			// Waiters listen to the headers that the leader publishes once it has stored a record.
			RePublish: &jetstream.RePublish{
				Source:      s.log.prefix + "r.*.*",
				Destination: s.wakePrefix + "{{wildcard(1)}}",
				HeadersOnly: true,
			},
		},
	} {
		cfg.Storage = jetstream.FileStorage
		cfg.Discard = jetstream.DiscardNew // what is full refuses, and forgets nothing
		// A message that a limit removed may reappear after a server is killed, since the removal
		// is not written to the disk. Rollups and purges are written.
		cfg.MaxMsgsPerSubject = -1
		cfg.AllowRollup = true
		cfg.Duplicates = dedupeWindow
		cfg.AllowMsgTTL = true
		cfg.AllowDirect = true
		if err := s.setUpStream(ctx, cfg); err != nil {
			return fmt.Errorf("natsstore: stream %s: %w", cfg.Name, err)
		}
	}
	if err := s.refreshReplicas(ctx); err != nil {
		return err
	}
	return s.setClock(ctx, 5)
}

func (s *Store) setUpStream(ctx context.Context, cfg jetstream.StreamConfig) error {
	return s.persist(ctx, func(ctx context.Context) error {
		old, err := s.js.Stream(ctx, cfg.Name)
		switch {
		case err == nil:
			return s.adopt(ctx, old.CachedInfo().Config, cfg)
		case !errors.Is(err, jetstream.ErrStreamNotFound):
			return temporary(err)
		}
		if cfg.Replicas = s.opts.Replicas; cfg.Replicas == 0 {
			if cfg.Replicas = 1; s.nc.ConnectedClusterName() != "" {
				cfg.Replicas = 3
			}
		}
		_, err = s.js.CreateStream(ctx, cfg)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process was faster
			return retry{err}
		}
		return temporary(err)
	})
}

// adopt accepts an existing stream that belongs to a store.
func (s *Store) adopt(ctx context.Context, old, want jetstream.StreamConfig) error {
	if old.MaxMsgsPerSubject != want.MaxMsgsPerSubject || !old.AllowMsgTTL || !old.AllowDirect || old.AllowRollup != want.AllowRollup ||
		len(old.Subjects) != 1 || old.Subjects[0] != want.Subjects[0] || old.Duplicates < dedupeWindow || old.Discard != want.Discard ||
		old.MaxAge != 0 || (old.RePublish == nil) != (want.RePublish == nil) {
		return fmt.Errorf("there is one that is none of a store: %w", store.ErrInvalid)
	}
	if s.opts.Replicas == 0 || s.opts.Replicas == old.Replicas {
		return nil
	}
	old.Replicas = s.opts.Replicas
	_, err := s.js.UpdateStream(ctx, old)
	return temporary(err)
}

// refreshReplicas records whether one server keeps each area.
func (s *Store) refreshReplicas(ctx context.Context) error {
	for _, a := range []*area{s.kv, s.log} {
		info, err := s.info(ctx, a, "", 0)
		if err != nil {
			return err
		}
		a.alone.Store(info.replicas == 1)
	}
	return nil
}

// MaxValue returns how long a value may be: what the servers take in one
// message, with a little less for its headers.
func (s *Store) MaxValue() int {
	return max(0, min(store.MaxValue, int(s.nc.MaxPayload())-overhead))
}

// Close ends the store: running calls may finish for a few seconds, waiting ones end with
// [store.ErrClosed], and later calls return that at once. Close returns when all goroutines of the
// store have ended. It is idempotent.
func (s *Store) Close() error {
	s.mu.Lock()
	already := s.closed
	s.closed = true
	s.mu.Unlock()
	if already {
		<-s.life.Done()
		s.work.Wait()
		return nil
	}
	s.wakes.close()
	cut := time.AfterFunc(closeGrace, s.stop)
	s.calls.Wait()
	cut.Stop()
	s.stop()
	s.work.Wait()
	if s.owned {
		s.nc.Close()
	}
	return nil
}

// begin lets a call in. Its context also ends with the store.
func (s *Store) begin(ctx context.Context) (context.Context, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, store.ErrClosed
	}
	s.calls.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(s.life, func() { cancel(store.ErrClosed) })
	return ctx, func() {
		unhook()
		cancel(nil)
		s.calls.Done()
	}, nil
}

// beginIntact is begin for calls that a loss of data ends. After a jump of a local clock the call compares it with the
// servers first.
func (s *Store) beginIntact(ctx context.Context) (context.Context, func(), error) {
	if loss := s.lost.Load(); loss != nil {
		return nil, nil, *loss
	}
	ctx, end, err := s.begin(ctx)
	if err == nil && s.clock.hasJumped() {
		if err = s.setClock(ctx, 1); err != nil {
			end()
		}
	}
	return ctx, end, err
}

// attend runs the periodic work: compare the clocks, check the number of replicas and the ends of the data, end idle
// subscriptions, sweep. Each new connection checks the ends, too: a server that starts again may have lost them.
func (s *Store) attend() {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	connected := s.nc.StatusChanged(nats.CONNECTED)
	defer s.nc.RemoveStatusListener(connected)
	looked, swept := time.Now(), time.Now()
	var sweep <-chan time.Time
	if s.opts.SweepInterval < time.Second*5 {
		t := time.NewTicker(s.opts.SweepInterval)
		defer t.Stop()
		sweep = t.C
	}
	for {
		select {
		case <-s.life.Done():
			return
		case <-connected:
			if err := s.checkEnds(s.life); err != nil {
				s.opts.Logger.DebugContext(s.life, "natsstore: look", "err", err)
			}
		case <-sweep:
			s.trySweep()
			swept = time.Now()
		case <-tick.C:
			s.wakes.tidy()
			if time.Since(looked) >= time.Minute || s.clock.hasJumped() {
				if err := errors.Join(s.refreshReplicas(s.life), s.setClock(s.life, 3), s.checkEnds(s.life)); err != nil {
					s.opts.Logger.DebugContext(s.life, "natsstore: look", "err", err)
				}
				looked = time.Now()
			}
			if time.Since(swept) >= s.opts.SweepInterval {
				took := s.trySweep()
				// A sweep of a very large store may take a fiftieth of the time.
				swept = time.Now().Add(max(0, 50*took-s.opts.SweepInterval))
			}
		}
	}
}
