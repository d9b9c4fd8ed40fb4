// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command accp-pipeline runs one workflow of five agents three times: in natural language, in JSON,
// and in ACCP frames. For each step it prints the number of tokens that the model of the receiving
// agent reads, counted with the vocabulary o200k_base:
//
//	go run ./examples/accp-pipeline
//
// Text and JSON represent agents without a protocol: each step contains the whole history. The
// frames pass through sessions, one per agent, which make checkpoints, share a state by deltas, and
// keep long texts in a store for the agents that need them. Most of the savings result from that,
// and not from the notation; the program prints both.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/tokenizer/o200k"
	"github.com/fivewire/fivewire/store"
)

func main() {
	timeout := flag.Duration("timeout", time.Minute, "maximum `duration` of the run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	if err := run(ctx, os.Stdout, accp.SessionOptions{}); err != nil {
		fmt.Fprintln(os.Stderr, "accp-pipeline:", err)
		os.Exit(1)
	}
}

var count = o200k.Counter{}.Count

// contextBudget is the number of context tokens that an agent gives its model in addition to the
// frame.
const contextBudget = 500

func run(ctx context.Context, out io.Writer, opts accp.SessionOptions) error {
	team, err := newTeam(opts, "planner", "research", "analyst", "writer", "reviewer")
	if err != nil {
		return err
	}
	var text, json strings.Builder // the history
	var sum struct{ text, json, frame, read int }

	fmt.Fprintln(out, "Tokens that the model of the receiving agent reads, by o200k_base.")
	fmt.Fprintln(out, "Frame is the new frame alone, and read what comes with it: summary, frames since, texts looked up.")
	fmt.Fprintf(out, "\n%4s  %-20s  %6s  %6s  %6s  %6s\n", "step", "", "text", "JSON", "frame", "read")
	for i, s := range workflow() {
		text.WriteString(s.text + "\n")
		history, err := s.json(i + 1)
		if err != nil {
			return err
		}
		json.WriteString(history + "\n")

		// The context of the receiver before the frame, and the frame.
		lines := slices.Clone(team.sessions[s.to].ModelContext(contextBudget, 0).Lines)
		sent, received, err := team.say(ctx, s)
		if err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
		frames := string(bytes.Join(sent.Frames, []byte{'\n'}))
		read := count(strings.Join(append(lines, frames), "\n"))
		for _, key := range s.reads {
			// The message has the value; the frame has a reference only.
			v, _ := received.Message.Params.Get(key)
			value, _ := v.Text()
			read += count(value)
		}

		row := [4]int{count(text.String()), count(json.String()), count(frames), read}
		to := s.to
		if s.state != nil {
			to = "all"
		}
		fmt.Fprintf(out, "%4d  %-20s  %6d  %6d  %6d  %6d\n", i+1, s.from+" → "+to, row[0], row[1], row[2], row[3])
		sum.text, sum.json, sum.frame, sum.read = sum.text+row[0], sum.json+row[1], sum.frame+row[2], sum.read+row[3]

		if v, state := team.sessions[s.to].State(); s.state != nil {
			whole, err := new(accp.Codec).AppendValue(nil, accp.Map(state...))
			if err != nil {
				return err
			}
			delta, _ := sent.Message.Params.Get("delta")
			changed, err := new(accp.Codec).AppendValue(nil, delta)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "      state %d: a delta of %d tokens instead of %d\n", v, count(string(changed)), count(string(whole)))
		}
		for _, key := range s.reads {
			v, _ := received.Unresolved.Params.Get(key)
			if ref, ok := v.Ref(); ok {
				fmt.Fprintf(out, "      %s looks up $%s\n", s.to, ref)
			}
		}
		if c := received.Checkpoint; c != nil {
			fmt.Fprintf(out, "      checkpoint %s (%s): %d frames of %d tokens become %d facts in %d\n",
				c.ID, strings.Join(c.Trigger, ", "), c.Frames, c.HotTokensBefore, len(c.Facts), c.SummaryTokens)
		}
	}
	fmt.Fprintf(out, "\n%4s  %-20s  %6d  %6d  %6d  %6d\n", "", "in total", sum.text, sum.json, sum.frame, sum.read)
	fmt.Fprintf(out, "\nACCP needs %.0f %% less than text and %.0f %% less than JSON.\n", saved(sum.read, sum.text), saved(sum.read, sum.json))
	fmt.Fprintf(out, "Without the history, each message for itself: %d in text, %d in JSON, %d in frames.\n",
		count(text.String()), count(json.String()), sum.frame)

	// All agents know the same now.
	version, state := team.sessions["planner"].State()
	for name, session := range team.sessions {
		if v, s := session.State(); v != version || !s.Equal(state) {
			return fmt.Errorf("%s has state %d, the planner %d", name, v, version)
		}
	}
	return nil
}

func saved(now, before int) float64 { return 100 - 100*float64(now)/float64(before) }

// A team is a group of agents that receive all messages, each in its own session. Here frames are
// passed within one process; over HTTP or WebSocket, accp.Server and accp.Client do the same.
type team struct{ sessions map[string]*accp.Session }

func newTeam(opts accp.SessionOptions, names ...string) (*team, error) {
	t := &team{sessions: map[string]*accp.Session{}}
	opts.TokenCounter = o200k.Counter{}
	opts.Persistence.SharedStore = store.NewMemory() // any engine of package store will do
	for _, name := range names {
		s, err := accp.NewSession(name, "q3", &opts)
		if err != nil {
			return nil, err
		}
		t.sessions[name] = s
	}
	return t, nil
}

// say sends the message of a step to the whole team. It returns the results of sending and of
// receiving it.
func (t *team) say(ctx context.Context, s step) (*accp.SendResult, *accp.ReceiveResult, error) {
	var sent *accp.SendResult
	var err error
	if s.state != nil {
		sent, err = t.sessions[s.from].Sync(ctx, s.state)
	} else {
		sent, err = t.sessions[s.from].Send(ctx, &accp.Message{Intent: s.intent, Op: s.op, Params: s.params})
	}
	if err != nil {
		return nil, nil, err
	}
	var got *accp.ReceiveResult
	for name, session := range t.sessions {
		if name == s.from {
			continue
		}
		for _, frame := range sent.Frames {
			r, err := session.Receive(ctx, frame)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", name, err)
			}
			if name == s.to {
				got = r
			}
		}
	}
	return sent, got, nil
}
