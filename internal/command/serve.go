// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"net"
	"net/http"
	"time"
)

// CloseTimeout bounds the end of a server after an interrupt.
const CloseTimeout = 10 * time.Second

// killTimeout bounds the wait for the ends of killed commands.
const killTimeout = 10 * time.Second

// ServeFlags are the flags of verbs that serve HTTP.
type ServeFlags struct{ addr, cert, key string }

// NewServeFlags declares the flags -addr, -cert and -cert-key.
func NewServeFlags(fs *flag.FlagSet) *ServeFlags {
	f := &ServeFlags{}
	fs.StringVar(&f.addr, "addr", "localhost:8080", "`address` to serve on")
	fs.StringVar(&f.cert, "cert", "", "`file` with the TLS certificate; without it, plain HTTP for a proxy in front")
	fs.StringVar(&f.key, "cert-key", "", "`file` with its key")
	return f
}

// Serve prints the address and serves until ctx ends. Then it calls shutdown, which ends streams and
// handlers, closes the server, and ends the commands of the verb.
func (f *ServeFlags) Serve(ctx context.Context, s *IO, srv *http.Server, shutdown func(context.Context) error) error {
	if (f.cert == "") != (f.key == "") {
		return Usage("-cert and -cert-key are needed together")
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return CouldNot(err)
		}
		srv.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}}
	}
	l, err := net.Listen("tcp", f.addr)
	if err != nil {
		return CouldNot(err)
	}
	defer s.Groups.End(killTimeout)
	served := make(chan error, 1)
	go func() {
		if f.cert != "" {
			served <- srv.ServeTLS(l, "", "")
			return
		}
		served <- srv.Serve(l)
	}()
	out := struct {
		Address string `json:"address"`
	}{l.Addr().String()}
	if err := s.Print("serving on "+out.Address, out); err != nil {
		return errors.Join(err, srv.Close())
	}
	select {
	case err := <-served:
		return CouldNot(err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), CloseTimeout)
	defer cancel()
	return errors.Join(shutdown(end), srv.Shutdown(end))
}
