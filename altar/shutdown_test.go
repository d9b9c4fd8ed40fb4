// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A heldStream is one whose peer leaves its direction open after the end of the other one.
type heldStream struct{ net.Conn }

func (heldStream) CloseWrite() error { return nil }

// serveHeld serves a stream whose peer never closes it.
func serveHeld(t *testing.T, h *Host, id *Principal) (peer net.Conn) {
	near, peer := net.Pipe()
	go func() { _ = h.Serve(context.Background(), NewStreamConn(heldStream{near}, nil), id) }()
	t.Cleanup(func() { _ = peer.Close() })
	synctest.Wait()
	return peer
}

// A shutdown without a deadline ends although peers do not close their connections (ALT-D45).
func TestShutdownDoesNotWaitForPeers(t *testing.T) {
	for name, c := range map[string]struct {
		want time.Duration
		peer func(t *testing.T, h *Host)
	}{
		"in process": {0, func(t *testing.T, h *Host) { connect(t, h, testUser).session("s") }},
		"in process, reads the end": {time.Second, func(t *testing.T, h *Host) {
			w := connect(t, h, testUser)
			w.send(&Ping{})
			go func() {
				time.Sleep(time.Second)
				next[*Pong](w)
				_, err := w.conn.Receive()
				require.ErrorIs(t, err, io.EOF)
			}()
		}},
		"in process, reads nothing": {30 * time.Second, func(t *testing.T, h *Host) { connect(t, h, testUser).send(&Ping{}) }},
		"stream": {time.Second, func(t *testing.T, h *Host) {
			go func(peer net.Conn) { _, _ = io.Copy(io.Discard, peer) }(serveHeld(t, h, testUser))
		}},
		"stream, reads nothing": {30 * time.Second, func(t *testing.T, h *Host) {
			_, err := io.WriteString(serveHeld(t, h, testUser), `{"type":"Ping"}`+"\n")
			require.NoError(t, err)
			synctest.Wait()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := testHost(t, nil)
				c.peer(t, h)
				began := time.Now()
				ctx, cancel := context.WithTimeout(context.Background(), time.Hour) // else a failing test hangs
				defer cancel()
				require.NoError(t, h.Shutdown(ctx))
				require.Equal(t, c.want, time.Since(began))
				require.Zero(t, h.Stats().Connections)
			})
		})
	}
}

func TestShutdownReportsThatMessagesWereCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t, nil)
		connect(t, h, testUser).send(&Ping{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, h.Shutdown(ctx), context.DeadlineExceeded)
	})
}

// A replaced Runtime that leaves its connection open does not occupy the Host (ALT-D16).
func TestReplacedRuntimeThatDoesNotCloseIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t, nil)
		for range 3 {
			peer := serveHeld(t, h, testService)
			go func() { _, _ = io.Copy(io.Discard, peer) }()
			_, err := io.WriteString(peer, `{"type":"AnnounceRuntime","runtime_id":"r1","protocol_version":"1.0.0"}`+"\n")
			require.NoError(t, err)
		}
		time.Sleep(2 * time.Second)
		require.Equal(t, 1, h.Stats().Connections)
	})
}
