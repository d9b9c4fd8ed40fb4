// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command accp-memory runs three agents that share one state and the summaries of their work over WebSocket.
// Each agent is a process. One of them is killed, starts again and continues with the same state and context:
//
//	go run ./examples/accp-memory
//
// The server and each agent keep their side of the session in an SQLite file. The state has the address of each
// summary. An address names the same text on every side, so an agent resolves those of the others.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/store/sqlstore"
)

const session = "project"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "accp-memory:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("accp-memory", flag.ContinueOnError)
	flags.SetOutput(stderr)
	dir := flags.String("dir", "", "`folder` of the stores; empty means a temporary one")
	name := flags.String("agent", "", "`name` of the agent that this process is; empty starts all")
	url := flags.String("url", "", "`URL` of the server, for an agent")
	rounds := flags.Int("rounds", 3, "findings of each agent")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *name != "" {
		return work(ctx, stdout, *dir, *name, *url, *rounds)
	}
	if *dir == "" {
		temporary, err := os.MkdirTemp("", "accp-memory")
		if err != nil {
			return err
		}
		defer os.RemoveAll(temporary)
		*dir = temporary
	}
	return team(ctx, stdout, stderr, *dir, *rounds)
}

// team serves the session, starts the agents and kills one of them after its first finding.
func team(ctx context.Context, stdout, stderr io.Writer, dir string, rounds int) (err error) {
	db, err := sqlstore.Open(ctx, filepath.Join(dir, "server.db"), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	logger := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	server, err := accp.NewServer("memory", &accp.ServerOptions{
		Auth:        accp.Auth{AllowAnonymous: true}, // only this host: see the address below
		Logger:      logger,
		Persistence: accp.Persistence{Store: db},
	})
	if err != nil {
		return err
	}
	server.Handle(accp.IntentReq, "note", accp.HandlerFunc(note))
	server.Handle(accp.IntentQry, "recall", accp.HandlerFunc(recall))
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		return err
	}
	web := &http.Server{Handler: server, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = web.Serve(l) }()
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, server.Shutdown(end), web.Shutdown(end))
	}()

	start := func(name string) (*agent, error) {
		return startAgent(ctx, stderr, "-agent", name, "-dir", dir, "-rounds", fmt.Sprint(rounds),
			"-url", "ws://"+l.Addr().String()+accp.WebSocketPath)
	}
	var agents []*agent
	defer func() {
		for _, a := range agents {
			a.kill()
		}
	}()
	for _, name := range []string{"ada", "bob", "eve"} {
		a, err := start(name)
		if err != nil {
			return err
		}
		agents = append(agents, a)
	}
	eve := agents[2]
	if _, err := eve.find("found 1"); err != nil {
		return err
	}
	eve.kill()
	fmt.Fprintln(stdout, "eve: killed")
	if agents[2], err = start("eve"); err != nil {
		return err
	}
	for _, a := range agents {
		line, err := a.find("knows")
		if err != nil {
			return err
		}
		fmt.Fprintln(stdout, line)
	}
	return nil
}

// An agent is a process.
type agent struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func startAgent(ctx context.Context, stderr io.Writer, args ...string) (*agent, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &agent{cmd, bufio.NewScanner(out)}, cmd.Start()
}

// find returns the next line of the agent with a text.
func (a *agent) find(text string) (string, error) {
	for a.lines.Scan() {
		if strings.Contains(a.lines.Text(), text) {
			return a.lines.Text(), nil
		}
	}
	return "", fmt.Errorf("agent %s ended", a.cmd.Args[2])
}

// kill ends the process at once. Nothing of it runs after that.
func (a *agent) kill() {
	_ = a.cmd.Process.Kill()
	_ = a.cmd.Wait()
}

// note confirms a finding.
func note(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
	return w.SendResult(m.Params)
}

// recall resolves the address of a summary that any agent has announced.
func recall(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
	v, err := w.Session().Resolve(ctx, "warm."+m.Params.Text("id"))
	if err != nil {
		return err
	}
	return w.SendResult(accp.Params{{Key: "result", Value: v}})
}

// work runs an agent. It makes the findings that the shared state lacks.
func work(ctx context.Context, stdout io.Writer, dir, name, url string, rounds int) (err error) {
	db, err := sqlstore.Open(ctx, filepath.Join(dir, name+".db"), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	client, err := accp.NewClient(url, name, &accp.ClientOptions{SessionID: session,
		Session: accp.SessionOptions{Persistence: accp.Persistence{Store: db}}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	if err := client.Session().Reload(ctx); err != nil { // what an earlier process has stored
		return err
	}
	earlier := strings.Join(client.Session().ModelContext(1000, 500).Lines, "\n")
	_, state := client.Session().State()
	for n := 1; n <= rounds; n++ {
		key := fmt.Sprintf("%s_%d", name, n)
		_, isShared := state.Get(key)
		if isShared && !strings.Contains(earlier, key) {
			return fmt.Errorf("the context lacks %s", key)
		}
		if isShared {
			continue // by an earlier process
		}
		if err := find(ctx, client, key); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%s: found %d\n", name, n)
	}
	found, err := read(ctx, client, 3*rounds)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s: knows %d findings\n", name, found)
	return nil
}

// find makes a finding, which is answered by done, so that the session has a checkpoint. The agent announces its summary
// by a reference, and adds its address to the state that all agents change.
func find(ctx context.Context, client *accp.Client, key string) error {
	finding := &accp.Message{Intent: accp.IntentReq, Op: "note", Params: accp.Params{{Key: "finding", Value: accp.String(key)}}}
	if _, err := client.Call(ctx, finding, nil); err != nil {
		return err
	}
	checkpoints := client.Session().Checkpoints()
	id := checkpoints[len(checkpoints)-1].ID
	share := &accp.Message{Intent: accp.IntentSync, Op: "memory", Params: accp.Params{{Key: "ref", Value: accp.Ref("warm." + id)}}}
	if _, err := client.Call(ctx, share, nil); err != nil {
		return err
	}
	return client.Update(ctx, func(state accp.Params) (accp.Params, error) {
		return state.Set(key, accp.String(id)), nil
	})
}

// read waits until the state has n summaries, resolves them, and returns the number of those that contain their finding.
func read(ctx context.Context, client *accp.Client, n int) (found int, err error) {
	var state accp.Params
	for len(state) < n {
		if _, err := client.Call(ctx, &accp.Message{Intent: accp.IntentQry, Op: profile.OpState}, nil); err != nil {
			return 0, err
		}
		_, state = client.Session().State()
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	for _, p := range state {
		id := accp.Params{{Key: "id", Value: p.Value}}
		m, err := client.Call(ctx, &accp.Message{Intent: accp.IntentQry, Op: "recall", Params: id}, nil)
		if err != nil {
			return 0, fmt.Errorf("summary of %s: %w", p.Key, err)
		}
		if strings.Contains(m.Params.Text("result"), p.Key) {
			found++
		}
	}
	return found, nil
}
