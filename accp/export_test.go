// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/fivewire/fivewire/accp/internal/order"
	"github.com/fivewire/fivewire/accp/internal/tier"
	"github.com/fivewire/fivewire/internal/wsconn"
)

// Parts of the codec.
type (
	Frame   = tree
	Scanner = scanner
)

var NewScanner = newScanner

// DecodeFrame reads a frame into f.
func (c *Codec) DecodeFrame(data []byte, f *Frame) error {
	if err := c.parse(data, f); err != nil {
		return err
	}
	return nil
}

// Message returns the message of a frame.
func (f *tree) Message() *Message {
	m, _ := f.message()
	return m
}

// SetReplayWindow makes the window of replays of a new session smaller, so that
// tests can fill it. It returns how large it was.
func SetReplayWindow(s *Session, n int) int {
	was := s.core.numbers.Bounds()
	s.core.numbers = order.New(n, s.core.numbers.IsPerSender())
	return was
}

// SetHotLimit makes hot state of a session smaller, so that tests can fill it.
func SetHotLimit(s *Session, n int) { s.hotLimit = n }

// DefaultSummary is the summary of a checkpoint without a Summarizer.
func DefaultSummary(facts []Fact, counter TokenCounter) string {
	var list []tier.Fact
	for _, f := range facts {
		list = append(list, tier.Fact(f))
	}
	return tier.Summarize(list, clamped(counter), new([]byte))
}

// Dial returns a client with an open connection.
func Dial(ctx context.Context, url, self string, opts *ClientOptions) (*Client, error) {
	c, err := NewClient(url, self, opts)
	if err != nil {
		return nil, err
	}
	if _, err := c.transport.(*connTransport).connect(ctx); err != nil {
		err = c.final(ctx, c.newAttempt(ctx, &Message{Intent: IntentSync, Op: opRegistry}, time.Second), err)
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// current returns the connection of a client.
func (c *Client) current() *wsConn { return c.transport.(*connTransport).conn.Load() }

// Done is closed when the connection of a client has ended.
func (c *Client) Done() <-chan struct{} { return c.current().done }

// Err returns the reason for the end of the connection.
func (c *Client) Err() error {
	if err := c.current().why(); !errors.Is(err, errConnClosed) {
		return err
	}
	return nil
}

// CloseCode returns the code with which the peer has closed a connection.
func CloseCode(err error) int {
	var e *wsconn.CloseError
	errors.As(err, &e)
	if e == nil {
		return 0
	}
	return e.Code
}

// Send sends a message over a connection without waiting for an answer.
func (c *Client) Send(ctx context.Context, m *Message) (*SendResult, error) {
	w := c.current()
	return w.post(ctx, false, func() (*SendResult, error) { return c.Session().Send(ctx, m) })
}

// Len returns the number of open streams.
func (s *StreamAssembler) Len() int { return len(s.open) }

// Cut ends the connection of a client as a broken network does.
func (c *Client) Cut() {
	w := c.current()
	w.because(io.ErrUnexpectedEOF)
	w.cancel()
}

// Description returns the meaning of an intent.
func Description(i Intent) string { return i.description() }

// Canonical returns a frame in canonical form.
func (c *Codec) Canonical(frame []byte) ([]byte, error) {
	m, err := c.Decode(frame)
	if err != nil {
		return nil, err
	}
	return c.Append(nil, m)
}

// BuiltinSchemas returns the schemas of every registry.
func BuiltinSchemas() []Schema { return builtinSchemas() }

// Float returns the decimal with the shortest text for f.
func Float(f float64) (Value, error) { return floatValue(f) }

// Valid reports whether i is one of the intents.
func (i Intent) Valid() bool { return i.valid() }

// Canonical returns the canonical text of a schema.
func (s *Schema) Canonical() (string, error) { return s.canonical() }

// Validate returns an error if a schema is malformed.
func (s *Schema) Validate() error { return s.validate() }

// Delta returns the custom schemas.
func (r *Registry) Delta() Value { return r.delta() }

// Merge adds the schemas of a peer.
func (r *Registry) Merge(delta Value, hash string) error { return r.merge(delta, hash) }

// Apply returns the state after a delta.
func Apply(state, delta Params) Params { return applyDelta(state, delta) }

// Diff returns the delta between two states.
func Diff(before, after Params) Params { return diffStates(before, after) }

// Null returns null.
func Null() Value { return Value{} }

// Key returns the full and the short form of a key.
func (r *Registry) Key(key, schema string) (full, short string, err error) { return r.key(key, schema) }

// Len returns the number of elements or entries of v.
func (v Value) Len() int { return len(v.list) }

// IsCancelled reports whether a chain was cancelled.
func (s *Session) IsCancelled(chain string) bool { return s.isCancelled(chain) }

// Announced returns the number of ids that are noted as announced.
func (s *Session) Announced() int { return len(s.isAnnounced) }

// Version returns the version of a registry.
func (r *Registry) Version() int64 { return r.version() }

// Schema returns the text of the param schema.
func (m *Message) Schema() string { return m.schema() }

// ApplyDelta returns state changed by a delta.
func ApplyDelta(state, delta Params) Params { return applyDelta(state, delta) }
