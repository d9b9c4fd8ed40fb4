// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package embedded runs a NATS server inside the process, for development and for services on a
// single machine. It uses JetStream in a folder and opens no port by default. It is a separate
// package so that users of a cluster do not link the server.
//
//	s, err := embedded.Open(ctx, "/var/lib/service", nil)
//	...
//	defer s.Close()
//	srv, err := arc.NewServer(&arc.ServerOptions{Persistence: arc.Persistence{Store: s}})
//
// Every change is on the disk when its call returns, so that it survives the end of the process and
// a power loss, but not the loss of the disk. One process at a time may use a folder; a second one
// gets an error.
package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/fivewire/fivewire/store/natsstore"
)

// Options adjusts a [Server]. The zero value is right for production.
type Options struct {
	// Listen is an address like "127.0.0.1:4222" where other processes may
	// connect, without a password: protect it. Empty means none.
	Listen string

	// Cluster makes the server one of several that keep the data together. Nil
	// means that it is alone.
	Cluster *Cluster

	// SyncInterval is the interval at which written data is synced to the disk. Zero means always,
	// before the call returns. With any other value, a power loss may lose acknowledged data; the
	// end of the process does not.
	SyncInterval time.Duration

	// MaxPayload bounds one message in bytes, and so a value. Zero means 8 MiB;
	// the most is 64 MiB.
	MaxPayload int

	// MaxStore is the maximum size of the folder in bytes. Zero means the default of NATS, three
	// quarters of the disk.
	MaxStore int64

	// AcceptLoss starts the server on a damaged folder. It omits messages that it cannot read.
	AcceptLoss bool

	// Configure, if set, changes the remaining options of the server.
	Configure func(*server.Options)

	// Log receives what the server says. Nil is silent.
	Log server.Logger
}

// A Cluster is the address of a server and of the others of its cluster. Three servers keep their
// data available while two of them run.
type Cluster struct {
	// Node is the name of this server, which no other has.
	Node string

	// Name is that of the cluster. Empty means "fivewire".
	Name string

	// Listen is the address where the other servers connect. It has no
	// password: protect it.
	Listen string

	// Peers are the addresses of the others, as host:port. That of this server
	// may be among them.
	Peers []string
}

// A Server is a NATS server in this process.
type Server struct {
	srv  *server.Server
	lock *os.File
	dir  string

	isReady bool

	once sync.Once
}

// startTimeout is how long a server may take to read its folder.
const startTimeout = time.Minute

// ErrLocked reports a folder that another process uses.
var ErrLocked = errors.New("embedded: another process uses the folder")

// Start runs a server that keeps its data in dir, and creates dir if it does not exist. Shutdown
// ends it.
func Start(dir string, opts *Options) (*Server, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if dir == "" {
		return nil, errors.New("embedded: no folder")
	}
	if o.MaxPayload == 0 {
		o.MaxPayload = 8 << 20
	}
	if o.MaxPayload < 0 || o.MaxPayload > 64<<20 {
		return nil, fmt.Errorf("embedded: MaxPayload of %d", o.MaxPayload)
	}
	dir, err := filepath.Abs(dir) // the program may change its directory
	if err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	so := &server.Options{
		ServerName: "fivewire-embedded",
		DontListen: true,
		NoSigs:     true,
		NoLog:      o.Log == nil,
		JetStream:  true,
		StoreDir:   dir,
		MaxPayload: int32(o.MaxPayload),
		MaxPending: max(64<<20, 2*int64(o.MaxPayload)),
		SyncAlways: o.SyncInterval == 0,

		JetStreamMaxStore: o.MaxStore,
	}
	if o.SyncInterval > 0 {
		so.SyncInterval = o.SyncInterval
	}
	if o.Listen != "" {
		so.DontListen = false
		if so.Host, so.Port, err = address(o.Listen); err != nil {
			return nil, err
		}
	}
	if o.Cluster != nil {
		if err := o.Cluster.set(so); err != nil {
			return nil, err
		}
	}
	if o.Configure != nil {
		o.Configure(so)
	}
	lock, err := lockFolder(dir)
	if err != nil {
		return nil, err
	}
	if !o.AcceptLoss {
		if err := verifyFolder(dir); err != nil {
			_ = lock.Close()
			return nil, fmt.Errorf("embedded: start %s: %w", dir, err)
		}
	}
	srv, err := server.NewServer(so)
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("embedded: %w", err)
	}
	log := &fatalLogger{Logger: o.Log, failed: make(chan error, 1)}
	if o.Log == nil {
		log.Logger = silent{}
	}
	srv.SetLoggerV2(log, false, false, false)
	s := &Server{srv: srv, lock: lock, dir: dir}
	srv.Start()
	if err := ready(srv, log.failed); err != nil {
		s.Shutdown()
		return nil, err
	}
	s.isReady = true
	if !srv.JetStreamEnabled() {
		s.Shutdown()
		return nil, fmt.Errorf("embedded: the server cannot use the folder %s", dir)
	}
	return s, nil
}

// ready waits until the server accepts connections or reports why it cannot.
func ready(srv *server.Server, failed <-chan error) error {
	for end := time.Now().Add(startTimeout); time.Now().Before(end); {
		if srv.ReadyForConnections(100 * time.Millisecond) {
			return nil
		}
		select {
		case err := <-failed:
			return err
		default:
		}
	}
	return fmt.Errorf("embedded: the server did not start within %v", startTimeout)
}

// A fatalLogger keeps the first error that keeps a server from running: the server itself only
// logs it.
type fatalLogger struct {
	server.Logger
	failed chan error // has one place
}

func (l *fatalLogger) Fatalf(format string, args ...any) {
	select {
	case l.failed <- fmt.Errorf("embedded: "+format, args...):
	default:
	}
	l.Logger.Fatalf(format, args...)
}

// silent is a logger without output.
type silent struct{}

func (silent) Noticef(string, ...any) {}
func (silent) Warnf(string, ...any)   {}
func (silent) Fatalf(string, ...any)  {}
func (silent) Errorf(string, ...any)  {}
func (silent) Debugf(string, ...any)  {}
func (silent) Tracef(string, ...any)  {}

func address(listen string) (host string, port int, err error) {
	addr, err := net.ResolveTCPAddr("tcp", listen)
	if err != nil {
		return "", 0, fmt.Errorf("embedded: %w", err)
	}
	if host = "0.0.0.0"; addr.IP != nil {
		host = addr.IP.String()
	}
	if port = addr.Port; port == 0 {
		port = server.RANDOM_PORT
	}
	return host, port, nil
}

func (c *Cluster) set(so *server.Options) (err error) {
	if c.Node == "" {
		return errors.New("embedded: a server of a cluster needs a name")
	}
	if c.Listen == "" { // it would mean any port of all networks
		return errors.New("embedded: a server of a cluster needs an address")
	}
	so.ServerName = c.Node
	if so.Cluster.Name = c.Name; c.Name == "" {
		so.Cluster.Name = "fivewire"
	}
	if so.Cluster.Host, so.Cluster.Port, err = address(c.Listen); err != nil {
		return err
	}
	for _, peer := range c.Peers {
		so.Routes = append(so.Routes, &url.URL{Scheme: "nats", Host: peer})
	}
	return nil
}

// lockFolder keeps two servers from writing the same files. The lock ends with
// the process, however that ends.
func lockFolder(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "fivewire.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	if err := lockFile(f); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%w: %s", ErrLocked, dir)
	}
	return f, nil
}

// Conn connects to the server, within the process. The options of
// [natsstore.DefaultConnOptions] come before opts.
func (s *Server) Conn(opts ...nats.Option) (*nats.Conn, error) {
	all := append(natsstore.DefaultConnOptions(), nats.InProcessServer(s.srv))
	nc, err := nats.Connect("", append(all, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	return nc, nil
}

// URL is where other processes connect; empty without Options.Listen.
func (s *Server) URL() string {
	if s.srv.Addr() == nil {
		return ""
	}
	return s.srv.ClientURL()
}

// Shutdown ends the server and returns when it has ended. It may be called
// again.
func (s *Server) Shutdown() {
	s.once.Do(func() {
		s.srv.Shutdown()
		s.srv.WaitForShutdown()
		if s.isReady {
			_ = os.WriteFile(filepath.Join(s.dir, cleanFile), nil, 0o600) // without it, an incomplete end is tolerated
		}
		_ = s.lock.Close() // and with it the lock
	})
}

// A Store is a [natsstore.Store] with the server that it is on.
type Store struct {
	*natsstore.Store
	conn   *nats.Conn
	server *Server
}

// Open starts a server on dir with the default options and opens the store
// there.
func Open(ctx context.Context, dir string, opts *natsstore.Options) (*Store, error) {
	srv, err := Start(dir, &Options{AcceptLoss: opts != nil && opts.AcceptLoss})
	if err != nil {
		return nil, err
	}
	s, err := srv.Open(ctx, opts)
	if err != nil {
		srv.Shutdown()
		return nil, err
	}
	return s, nil
}

// Open opens a store on the server. Its Close ends the server too.
func (s *Server) Open(ctx context.Context, opts *natsstore.Options) (*Store, error) {
	var o []nats.Option
	if opts != nil {
		o = opts.ConnOptions
	}
	nc, err := s.Conn(o...)
	if err != nil {
		return nil, err
	}
	var marked natsstore.Options
	if opts != nil {
		marked = *opts
	}
	if marked.MarkFile == "" {
		marked.MarkFile = filepath.Join(s.dir, cmp.Or(marked.StreamPrefix, "fivewire")+markSuffix)
	}
	st, err := natsstore.New(ctx, nc, &marked)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return &Store{Store: st, conn: nc, server: s}, nil
}

// Close ends the store as [natsstore.Store.Close] does, and then the server.
func (s *Store) Close() error {
	err := s.Store.Close()
	s.conn.Close()
	s.server.Shutdown()
	return err
}
