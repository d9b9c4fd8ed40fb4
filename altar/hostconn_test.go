// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"io"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar/internal/transport"
	"github.com/fivewire/fivewire/internal/budget"
)

// failing is a connection whose sending fails.
type failing struct {
	*scripted
	send func(m Message) error
}

func (f failing) Send(m Message) error { return f.send(m) }

// A message that cannot be sent ends no connection, and hides no loss of one that
// comes right behind it.
func TestUnsendableThenLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t, nil)
		sends, gate := 0, make(chan struct{})
		conn := failing{scripted: newScripted(nil)}
		conn.send = func(Message) error {
			sends++
			switch sends {
			case 1: // while the others are queued
				<-gate
				return nil
			case 2, 4:
				return Errorf(ErrInternal, "", "a message that cannot be sent")
			case 3:
				return nil
			}
			return io.ErrClosedPipe
		}
		served := make(chan error, 1)
		go func() { served <- h.Serve(t.Context(), conn, testUser) }()
		for range 5 {
			conn.in <- &Ping{}
			synctest.Wait()
		}
		require.Empty(t, served)
		close(gate)
		synctest.Wait()
		require.Len(t, served, 1, "the connection is lost")
		require.Equal(t, 5, sends)
	})
}

// The end of a Host closes a connection that is admitted and not served yet. The race detector finds what both use.
func TestCloseEndsAdmittedConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t, nil)
		hc, err := h.admit(newScripted(nil), false, testUser, "")
		require.NoError(t, err)
		closed, served := make(chan error, 1), make(chan error, 1)
		go func() {
			time.Sleep(time.Millisecond)
			served <- h.serveConn(t.Context(), hc)
		}()
		go func() { closed <- h.Close() }()
		require.NoError(t, <-closed)
		synctest.Wait()
		require.Len(t, served, 1)
	})
}

// Messages that are put while the writer of an outbox ends reach the next one, in order. The race
// detector finds two writers at a time.
func TestOutboxHasOneWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const senders, messages = 4, 500
		o, ends := newOutbox(), 0
		last := map[string]int64{}
		o.start(func() {
			for {
				m, _, isOver := o.take()
				if isOver {
					ends++
				}
				if m == nil {
					return
				}
				chunk := m.(*StreamChunk)
				require.Equal(t, last[chunk.InvocationID], chunk.ChunkID)
				last[chunk.InvocationID]++
			}
		})
		for i := range senders {
			go func() {
				for n := range int64(messages) {
					o.put(&StreamChunk{InvocationID: strconv.Itoa(i), ChunkID: n}, budget.Hold{}, false)
					runtime.Gosched()
				}
			}()
		}
		synctest.Wait()
		require.Len(t, last, senders)
		for _, n := range last {
			require.EqualValues(t, messages, n)
		}
		o.end(transport.Goodbye{}, nil)
		synctest.Wait()
		require.Equal(t, 1, ends)
		o.close()
		synctest.Wait()
		require.Equal(t, 1, ends)
	})
}

// A caller that has to write finds the function for that, however early it puts a message.
func TestOutboxHasWriterFromStart(t *testing.T) {
	for range 2000 {
		o, started := newOutbox(), make(chan struct{})
		go func() {
			o.startInline(func() {})
			close(started)
		}()
		for range 20 {
			if o.put(&StreamChunk{}, budget.Hold{}, false) {
				require.NotNil(t, o.write)
				break
			}
		}
		<-started
	}
}
