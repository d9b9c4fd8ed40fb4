// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package embedded runs a NATS server inside the process, for development and
// for services on a single machine: JetStream in a folder, no port unless one is
// asked for. It is a package of its own so that users of a cluster do not link
// the server.
//
//	s, err := embedded.Open(ctx, "/var/lib/service", nil)
//	...
//	defer s.Close()
//	srv := arc.NewServer(&arc.ServerOptions{Store: s})
//
// Every change is on the disk when its call returns, so that it survives the end
// of the process and a power loss, but not the loss of the disk. One process at
// a time may use a folder; a second one gets an error.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
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

	// SyncInterval is how often the disk is told to keep what was written. Zero
	// means always, before the call returns. With any other a power loss may
	// take what was acknowledged since; the end of the process does not.
	SyncInterval time.Duration

	// MaxPayload bounds one message in bytes, and so a value. Zero means 8 MiB;
	// the most is 64 MiB.
	MaxPayload int

	// MaxStore bounds what the folder holds in bytes. Zero leaves it to NATS,
	// which takes three quarters of the disk.
	MaxStore int64

	// Configure changes what is left of the server's own options. Nil changes
	// nothing.
	Configure func(*server.Options)

	// Log receives what the server says. Nil is silent.
	Log server.Logger
}

// A Cluster says how a server reaches the others of its cluster. Three servers
// keep what they hold while any two of them are there.
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

	once sync.Once
}

// startTimeout is how long a server may take to read its folder.
const startTimeout = time.Minute

// ErrLocked reports a folder that another process uses.
var ErrLocked = errors.New("embedded: another process uses the folder")

// Start runs a server that keeps its data in dir, which is made if it is not
// there. Shutdown ends it.
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
	var err error
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
	srv, err := server.NewServer(so)
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("embedded: %w", err)
	}
	if o.Log != nil {
		srv.SetLoggerV2(o.Log, false, false, false)
	}
	s := &Server{srv: srv, lock: lock}
	srv.Start()
	if !srv.ReadyForConnections(startTimeout) {
		s.Shutdown()
		return nil, errors.New("embedded: the server did not start in time")
	}
	if !srv.JetStreamEnabled() {
		s.Shutdown()
		return nil, fmt.Errorf("embedded: the server cannot use the folder %s", dir)
	}
	return s, nil
}

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
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
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
	srv, err := Start(dir, nil)
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
	st, err := natsstore.New(ctx, nc, opts)
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
