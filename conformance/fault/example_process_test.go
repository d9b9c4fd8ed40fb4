// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package fault_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/conformance/fault"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "serve" {
		serveTool(os.Args[2])
		return
	}
	goleak.VerifyTestMain(m)
}

// serveTool is a tool server: it notes the id of each call in a file before it answers.
func serveTool(dir string) {
	socket := filepath.Join(dir, "socket")
	_ = os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		panic(err)
	}
	_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, err := os.OpenFile(filepath.Join(dir, "calls"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = fmt.Fprintln(f, r.URL.Query().Get("id"))
			_ = f.Close()
		}
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
}

// A tool server that is killed ten times under load loses no acknowledged call.
func ExampleCommand() {
	dir, err := os.MkdirTemp("", "fault")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server, err := fault.Command(ctx, os.Args[0], "serve", dir)
	if err != nil {
		panic(err)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, "socket"))
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: 5 * time.Second}
	load, stop := context.WithCancel(ctx)
	var acknowledged []string
	var mu sync.Mutex
	var wg sync.WaitGroup
	for caller := range 4 {
		wg.Go(func() {
			for n := 0; load.Err() == nil; n++ {
				id := fmt.Sprint(caller, "-", n)
				res, err := client.Get("http://tool/?id=" + id)
				if err != nil {
					time.Sleep(time.Millisecond)
					continue
				}
				res.Body.Close()
				mu.Lock()
				acknowledged = append(acknowledged, id)
				mu.Unlock()
			}
		})
	}
	for kills := range 10 {
		for answers := 0; answers < 20*(kills+1); time.Sleep(time.Millisecond) {
			mu.Lock()
			answers = len(acknowledged)
			mu.Unlock()
		}
		if err := server.Kill(0); err != nil {
			panic(err)
		}
	}
	stop()
	wg.Wait()
	fmt.Println("lost calls:", check(dir, acknowledged))
	// Output: lost calls: []
}

// check returns the acknowledged calls that the tool server has not noted.
func check(dir string, acknowledged []string) (lost []string) {
	text, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil {
		return []string{err.Error()}
	}
	noted := map[string]bool{}
	for id := range strings.SplitSeq(string(text), "\n") {
		noted[id] = true
	}
	for _, id := range acknowledged {
		if !noted[id] {
			lost = append(lost, id)
		}
	}
	return lost
}
