// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/fivewire/fivewire/air/internal/web"
	"github.com/fivewire/fivewire/internal/sse"
)

// streamSilence is how long a stream may send nothing, not even a comment, before
// it is given up. The deployed relay sends a comment every 30 s.
const streamSilence = 90 * time.Second

// errNoStream reports a relay that does not stream.
var errNoStream = errors.New("the relay does not stream")

// stream handles what a relay of the deployed dialect sends by itself, each event
// as a page of one, until something fails. It always returns an error.
func (p *Poller) stream(ctx context.Context) error {
	p.turn.Lock()
	defer p.turn.Unlock()
	if !p.plain {
		return errNoStream
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(streamSilence, func() { cancel(errors.New("the stream fell silent")) })
	defer watch.Stop()

	u := p.pullURL(p.cursor) + "&stream=1"
	req, err := web.NewRequest(ctx, http.MethodGet, u, nil, p.opts.AgentSecret)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	res, err := p.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		return fmt.Errorf("%w: status %d", errNoStream, res.StatusCode)
	}
	events := sse.NewReader(&watched{res.Body, watch}, &sse.ReaderOptions{MaxData: 4*DefaultMaxBytes + 4096})
	for {
		ev, err := events.Next()
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		if ev.Name != "envelope" {
			continue
		}
		item, ok := parseItem(ev.Data, true)
		if !ok {
			return errPage
		}
		var d drain
		settled, err := p.handle(ctx, &page{items: []pulled{item}}, p.cursor, &d)
		if err := errors.Join(p.ack(ctx, settled), err); err != nil {
			return err
		}
		if d.unsettled {
			p.cursor = d.back
			return errors.New("an envelope could not be settled")
		}
		p.cursor = fmt.Sprint(item.seq)
	}
}

// watched puts the alarm off whenever something arrives.
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
