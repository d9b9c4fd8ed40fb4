// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command accp-pipeline runs one workflow of five agents and prints what the models of the receiving agents read, in
// natural language, in JSON, and in ACCP frames, counted with the vocabulary o200k_base:
//
//	go run ./examples/accp-pipeline
//
// The whole history in text and JSON represents agents without a protocol. The frames pass through sessions, one per agent,
// which make checkpoints, share a state by deltas, and keep long texts in a store for the agents that need them. The last
// columns have the same information in each notation: the lines of [accp.Session.ModelContext], and the same summaries and
// messages as text and as JSON. Costs are given with and without a prompt cache.
package main

import (
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
	context.AfterFunc(ctx, stop) // a second signal ends the process
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	if err := run(ctx, os.Stdout, accp.SessionOptions{}); err != nil {
		fmt.Fprintln(os.Stderr, "accp-pipeline:", err)
		os.Exit(1)
	}
}

var count = o200k.Counter{}.Count

// contextBudget is the number of context tokens that an agent gives its model.
const contextBudget = 500

// Prices of a token with a prompt cache. One that is read without a cache costs 1.
const priceWritten, priceCached = 1.25, 0.1

// columns are the contexts that the program compares. The first two are whole histories.
var columns = []string{"text", "JSON", "text", "JSON", "ACCP"}

// A bill is the cost of the contexts of one column. A model has a cache of the last context of its agent.
type bill struct {
	tokens int
	cached float64
	last   map[string][]string
}

// add adds a context of an agent and returns its number of tokens.
func (b *bill) add(agent string, lines []string) (tokens int) {
	stable := true
	for i, line := range lines {
		n := count(line) + 1 // with the line feed
		stable = stable && i < len(b.last[agent]) && b.last[agent][i] == line
		price := priceWritten
		if stable {
			price = priceCached
		}
		b.cached += price * float64(n)
		tokens += n
	}
	b.tokens += tokens
	b.last[agent] = lines
	return tokens
}

// same returns the context of a session in another notation: the texts of its messages, and its summaries as they are.
func same(lines []string, texts map[string]string) []string {
	out := slices.Clone(lines)
	for i, line := range lines {
		if text, ok := texts[line]; ok {
			out[i] = text
		}
	}
	return out
}

func run(ctx context.Context, out io.Writer, opts accp.SessionOptions) error {
	team, err := newTeam(opts, "planner", "research", "analyst", "writer", "reviewer")
	if err != nil {
		return err
	}
	var text, json []string // the history
	textOf, jsonOf := map[string]string{}, map[string]string{}
	bills := make([]bill, len(columns))
	for i := range bills {
		bills[i].last = map[string][]string{}
	}

	fmt.Fprintln(out, "Tokens that the model of the receiving agent reads, by o200k_base: the whole history, or the same")
	fmt.Fprintln(out, "summaries, messages since and looked-up texts in three notations.")
	fmt.Fprintf(out, "\n%4s  %-20s  %6s  %6s  %6s  %6s  %6s\n", "step", "", "history", "", "same", "", "")
	fmt.Fprintf(out, "%4s  %-20s  %6s  %6s  %6s  %6s  %6s\n", "", "", columns[0], columns[1], columns[2], columns[3], columns[4])
	for i, s := range workflow() {
		sent, received, err := team.say(ctx, s)
		if err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
		history, err := s.json()
		if err != nil {
			return err
		}
		text, json = append(text, s.text), append(json, history)
		line, err := contextLine(received.Unresolved)
		if err != nil {
			return err
		}
		textOf[line] = s.short(received.Unresolved)
		if jsonOf[line], err = messageJSON(received.Unresolved); err != nil {
			return err
		}
		lines := team.sessions[s.to].ModelContext(contextBudget, 0).Lines
		contexts := [][]string{slices.Clone(text), slices.Clone(json), same(lines, textOf), same(lines, jsonOf), slices.Clone(lines)}
		for _, key := range s.reads {
			// The message has the value; the frame has a reference only.
			v, _ := received.Message.Params.Get(key)
			value, _ := v.Text()
			for k := 2; k < len(contexts); k++ {
				contexts[k] = append(contexts[k], value)
			}
		}

		to := s.to
		if s.state != nil {
			to = "all"
		}
		fmt.Fprintf(out, "%4d  %-20s", i+1, s.from+" → "+to)
		for k, lines := range contexts {
			fmt.Fprintf(out, "  %6d", bills[k].add(s.to, lines))
		}
		fmt.Fprintln(out)
		if err := describe(out, team, s, sent, received); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "\n%4s  %-20s", "", "in total")
	for _, b := range bills {
		fmt.Fprintf(out, "  %6d", b.tokens)
	}
	fmt.Fprintf(out, "\n%4s  %-20s", "", "cost with caching")
	for _, b := range bills {
		fmt.Fprintf(out, "  %6.0f", b.cached)
	}
	fmt.Fprintf(out, "\n\nWith the same information, ACCP needs %.0f %% less than text and %.0f %% less than JSON.\n",
		saved(bills[4].tokens, bills[2].tokens), saved(bills[4].tokens, bills[3].tokens))
	fmt.Fprintf(out, "With a prompt cache, it costs %.0f %% less than text and %.0f %% less than JSON.\n",
		saved(bills[4].cached, bills[2].cached), saved(bills[4].cached, bills[3].cached))

	// All agents know the same now.
	version, state := team.sessions["planner"].State()
	for name, session := range team.sessions {
		if v, s := session.State(); v != version || !s.Equal(state) {
			return fmt.Errorf("%s has state %d, the planner %d", name, v, version)
		}
	}
	return nil
}

// describe prints what sessions did in a step.
func describe(out io.Writer, team *team, s step, sent *accp.SendResult, received *accp.ReceiveResult) error {
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
	return nil
}

// contextLine returns the line of a message in the context of a model: its frame without metadata.
func contextLine(m *accp.Message) (string, error) {
	bare := *m
	bare.Meta = nil
	frame, err := new(accp.Codec).Append(nil, &bare)
	return string(frame), err
}

func saved[T int | float64](now, before T) float64 { return 100 - 100*float64(now)/float64(before) }

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
		s.ModelContext(contextBudget, 0) // from now on, each message adds a line
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
