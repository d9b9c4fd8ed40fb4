// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/air/internal/exchange"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/sse"
)

// streamSilence bounds the silence of a stream. The deployed relay sends a comment every 30 s.
const streamSilence = 90 * time.Second

// errNoStream reports a relay that does not stream.
var errNoStream = errors.New("relay does not stream")

// stream handles the events of a deployed relay, each as a page of one envelope, until an error. It
// always returns an error. A drain can run between two events.
func (p *Poller) stream(ctx context.Context) error {
	if err := p.take(ctx); err != nil {
		return err
	}
	m := &p.mailbox
	isPlain, u := m.isPlain, m.pullURL(p.at.Cursor)+"&stream=1"
	p.release()
	if !isPlain {
		return errNoStream
	}
	streaming, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(streamSilence, func() { cancel(errors.New("stream idle too long")) })
	defer watch.Stop()

	r := &exchange.Request{Op: "stream", Method: http.MethodGet, URL: u, Limit: -1}
	if err := m.sign(r); err != nil {
		return err
	}
	res, err := m.client.Stream(streaming, r)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoStream, err)
	}
	defer res.Body.Close()
	events := sse.NewReader(&watched{res.Body, watch}, &sse.ReaderOptions{MaxData: 4*defaultMaxMessage + 4096})
	for {
		ev, err := events.Next()
		if err != nil {
			return errors.Join(err, context.Cause(streaming))
		}
		if ev.Name != "envelope" {
			continue
		}
		item, ok := parseItem(ev.Data, true)
		if !ok {
			return errPage
		}
		watch.Stop() // nothing is read
		if err := p.handleEvent(ctx, &item); err != nil {
			return err
		}
		watch.Reset(streamSilence)
	}
}

// handleEvent handles and acknowledges the envelope of an event, as a drain.
func (p *Poller) handleEvent(ctx context.Context, item *pulled) error {
	w, err := p.life.Start(ctx, life.Part)
	if err != nil {
		return err
	}
	defer w.Finish()
	if err := p.take(w); err != nil {
		return err
	}
	defer p.release()
	var d drain
	at := p.at
	at.IsBehind = false
	p.at, p.unsettled = at.Begin(), memo[replayKey, struct{}]{}
	settled, err := p.handleLocked(w, &page{items: []pulled{*item}}, at.Cursor, &d)
	p.inbox.receiver.ledger.keep(&d.round)
	if err := errors.Join(p.mailbox.ack(w, settled), err); err != nil {
		return err
	}
	isBack := p.at.IsBack
	if p.at = p.at.Page("", fmt.Sprint(item.seq), false, false); isBack {
		return errors.New("envelope without final outcome")
	}
	return nil
}

// watched resets a timer whenever data arrives.
type watched struct {
	r     io.Reader
	alarm *time.Timer
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.r.Read(b)
	if n > 0 {
		w.alarm.Reset(streamSilence)
	}
	return n, err
}
