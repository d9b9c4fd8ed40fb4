// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command cluster shows services that outlive their processes. It starts three NATS servers that
// keep the state, three processes that each serve the same ARC agent and the same AIR relay, and a
// reverse proxy in front of them. While clients create tasks and send mail, it kills one of the
// three. Then it counts the results:
//
//	go run . -for 8s
//
// In production the NATS servers and the processes are on separate machines, and the proxy is that
// of your platform. The essential parts are in instance.go: a store that the processes share, and
// four options.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fivewire/fivewire/store/natsstore/embedded"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if name := os.Getenv(instanceName); name != "" {
		if err := instance(ctx, name, os.Getenv(instanceStore), os.Stdin, os.Stdout); err != nil {
			log.Fatal(name, ": ", err)
		}
		return
	}
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("cluster", flag.ContinueOnError)
	flags.SetOutput(out)
	last := flags.Duration("for", 8*time.Second, "how long clients begin new work")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	dir, err := os.MkdirTemp("", "fivewire-cluster-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	url, stopNodes, err := startNodes(dir)
	if err != nil {
		return err
	}
	defer stopNodes()

	var instances []*process
	defer func() {
		for _, p := range instances {
			p.kill()
		}
	}()
	var addrs []string
	for _, name := range []string{"one", "two", "three"} {
		p, err := startInstance(name, url)
		if err != nil {
			return err
		}
		instances, addrs = append(instances, p), append(addrs, p.addr)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	front := newProxy(addrs)
	srv := &http.Server{Handler: front, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	defer func() {
		err = errors.Join(err, srv.Close())
		<-served
		front.close()
	}()
	fmt.Fprintln(out, "3 NATS servers, 3 instances, 1 proxy")

	kill := time.AfterFunc(*last/2, func() { // in the middle of the work
		instances[1].kill()
		fmt.Fprintln(out, "killed instance two")
	})
	defer kill.Stop()
	tallies, err := traffic(ctx, "http://"+l.Addr().String(), *last)
	if err != nil {
		return err
	}
	lost := 0
	for _, t := range tallies {
		fmt.Fprintln(out, t)
		lost += t.sent - t.answered
	}
	if lost > 0 {
		return fmt.Errorf("%d lost", lost)
	}
	return nil
}

// startNodes runs three NATS servers in this process.
func startNodes(dir string) (url string, stop func(), err error) {
	var routes, clients, urls []string
	for range 3 {
		r, err := freeAddress()
		if err != nil {
			return "", nil, err
		}
		c, err := freeAddress()
		if err != nil {
			return "", nil, err
		}
		routes, clients, urls = append(routes, r), append(clients, c), append(urls, "nats://"+c)
	}
	nodes, faults := make([]*embedded.Server, 3), make([]error, 3)
	each := func(f func(i int)) {
		var wg sync.WaitGroup
		for i := range nodes {
			wg.Go(func() { f(i) })
		}
		wg.Wait()
	}
	stop = func() {
		each(func(i int) {
			if nodes[i] != nil {
				nodes[i].Shutdown()
			}
		})
	}
	each(func(i int) {
		name := fmt.Sprint("node-", i+1)
		nodes[i], faults[i] = embedded.Start(filepath.Join(dir, name), &embedded.Options{
			Listen:  clients[i],
			Cluster: &embedded.Cluster{Node: name, Listen: routes[i], Peers: routes},
		})
	})
	if err := errors.Join(faults...); err != nil {
		stop()
		return "", nil, err
	}
	return strings.Join(urls, ","), stop, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// A process is one instance.
type process struct {
	addr string
	kill func()
}

// startInstance starts this program again as an instance.
func startInstance(name, url string) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), instanceName+"="+name, instanceStore+"="+url)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe() // when it closes the instance ends, whatever becomes of us
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{kill: sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // SIGKILL: it cannot tidy up
		_ = cmd.Wait()
		_ = in.Close()
	})}
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		p.kill()
		return nil, fmt.Errorf("instance %s did not start: %w", name, err)
	}
	p.addr = strings.TrimSpace(addr)
	return p, nil
}
