// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package wsconn

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/sendq"
)

// inBubble runs f in virtual time, with its cleanup.
func inBubble(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }

func TestMessagesArrive(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newPair(t, Options{}, nil)
		for _, size := range []int{0, 1, 125, 126, 511, 512, 4096, maxPart - 1, maxPart, maxPart + 1, 3 * maxPart, 1 << 20} {
			want := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
			for _, dir := range [][2]*Conn{{a, b}, {b, a}} {
				got := exchange(t, dir[0], dir[1], want)
				require.LessOrEqual(t, cap(got), max(8, 2*size))
			}
		}
		synctest.Wait()
		require.LessOrEqual(t, cap(b.scratch), maxPart, "the memory of a large message is kept")
	})
}

// exchange sends a message from a to b and returns it as received.
func exchange(t *testing.T, a, b *Conn, msg []byte) []byte {
	t.Helper()
	written := make(chan error, 1)
	go func() { written <- a.Write(t.Context(), msg) }()
	got, err := b.Read(t.Context())
	require.NoError(t, err)
	require.True(t, bytes.Equal(msg, got), "of %d bytes, got %d", len(msg), len(got))
	require.NoError(t, <-written)
	return got
}

func TestMessagesOfManyWritersArriveWhole(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newPair(t, Options{}, nil)
		var wg sync.WaitGroup
		const writers, each = 8, 10
		for i := range writers {
			wg.Go(func() {
				for n := range each {
					msg := bytes.Repeat([]byte{'a' + byte(i)}, 1+n*20000)
					require.NoError(t, a.Write(t.Context(), msg))
				}
			})
		}
		lengths := map[byte]int{}
		for range writers * each {
			got, err := b.Read(t.Context())
			require.NoError(t, err)
			require.Equal(t, len(got), bytes.Count(got, got[:1]), "two messages are mixed")
			require.Equal(t, 1+lengths[got[0]]*20000, len(got), "the order of a writer changed")
			lengths[got[0]]++
		}
		wg.Wait()
	})
}

func TestWriteRefusesTooLargeMessageAlone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newPair(t, Options{MaxOutput: 10}, &AcceptOptions{Options: Options{MaxOutput: 10}})
		for _, dir := range [][2]*Conn{{a, b}, {b, a}} {
			err := dir[0].Write(t.Context(), make([]byte, 11))
			require.ErrorIs(t, err, ErrTooLarge)
			require.Equal(t, retry.Permanent, retry.ClassOf(err), "a message too large is sent again")
			require.ErrorContains(t, err, "11 bytes, limit 10")
			require.ErrorContains(t, dir[0].Write(t.Context(), []byte{0xff}), "not UTF-8")
			exchange(t, dir[0], dir[1], []byte("0123456789"))
		}
	})
}

func TestReceivedMessageIsRefused(t *testing.T) {
	for _, tt := range []struct {
		op      byte
		payload []byte
		code    int
		want    error
	}{
		{opBinary, []byte("a"), 1003, nil},
		{opText, []byte("a\xff"), 1007, nil},
		{opText, []byte("01234567890"), 1009, ErrTooLarge},
		{opText, make([]byte, 100_000), 1009, ErrTooLarge},
	} {
		eachRole(t, Options{MaxMessage: 10}, func(t *testing.T, c *Conn, p *rawPeer) {
			p.send(t, opText, []byte("0123456789"))
			got, err := c.Read(t.Context())
			require.NoError(t, err)
			require.Len(t, got, 10)
			go func() { _, _ = p.Write(p.frame(tt.op, tt.payload)) }()
			code, _ := p.receiveClose(t)
			require.Equal(t, tt.code, code)
			_, err = c.Read(t.Context())
			require.Error(t, err)
			require.Equal(t, retry.Permanent, retry.ClassOf(err))
			if tt.want != nil {
				require.ErrorIs(t, err, tt.want)
			}
		})
	}
}

// The parts of a message end between characters, and are handed on before the message is complete.
func TestMessageArrivesInParts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newPair(t, Options{}, &AcceptOptions{Options: Options{Parts: true}})
		for _, size := range []int{0, 1, maxPart - 1, maxPart, maxPart + 1, 5*maxPart + 3} {
			want := strings.Repeat("€", size/3+1)[:3*((size+2)/3)]
			written := make(chan error, 1)
			go func() { written <- a.Write(t.Context(), []byte(want)) }()
			var got []byte
			for isLast := false; !isLast; {
				var data []byte
				var err error
				data, isLast, err = b.ReadPart(t.Context())
				require.NoError(t, err)
				require.True(t, utf8.Valid(data))
				require.LessOrEqual(t, len(data), 2*maxPart)
				got = append(got, data...)
			}
			require.True(t, want == string(got), "of %d bytes, got %d", len(want), len(got))
			require.NoError(t, <-written)
		}
	})
	for payload, code := range map[string]int{
		strings.Repeat("x", maxPart) + "\xff":                      1007,
		strings.Repeat("x", maxPart-1) + "\xff\xff":                1007,
		strings.Repeat("x", 2*maxPart) + "\xe2\x82":                1007,
		strings.Repeat("x", 3*maxPart) + strings.Repeat("x", 1000): 1009,
	} {
		eachRole(t, Options{MaxMessage: 3 * maxPart, Parts: true}, func(t *testing.T, c *Conn, p *rawPeer) {
			go func() { _, _ = p.Write(p.frame(opText, []byte(payload))) }()
			var err error
			go func() {
				for err == nil {
					_, err = c.Read(context.Background())
				}
			}()
			got, _ := p.receiveClose(t)
			require.Equal(t, code, got)
			synctest.Wait()
			require.Equal(t, retry.Permanent, retry.ClassOf(err))
		})
	}
}

func TestCloseErrorHasCodeAndClass(t *testing.T) {
	for code, class := range map[int]retry.Class{
		CodeNormal: retry.Unknown, CodeShutdown: retry.Unknown, 1003: retry.Permanent, 1007: retry.Unknown,
		CodeNotAllowed: retry.Permanent, 1009: retry.Permanent, CodeInternal: retry.Unknown,
		CodeOverloaded: retry.Refused, CodeReplaced: retry.Permanent,
	} {
		inBubble(t, func(t *testing.T) {
			a, b := newPair(t, Options{}, nil)
			start := time.Now()
			b.Close(code, "reason")
			require.Zero(t, time.Since(start), "a peer that closes is not waited for")
			_, readErr := a.Read(t.Context())
			for _, err := range []error{readErr, a.Write(t.Context(), nil)} {
				var e *CloseError
				require.ErrorAs(t, err, &e)
				require.Equal(t, CloseError{code, "reason"}, *e)
				require.Equal(t, class, retry.ClassOf(err))
			}
			_, err := b.Read(t.Context())
			require.ErrorIs(t, err, ErrClosed)
			require.ErrorIs(t, b.Write(t.Context(), nil), ErrClosed)
		})
	}
}

func TestMessagesBeforeCloseAreRead(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newPair(t, Options{}, nil)
		require.NoError(t, a.Write(t.Context(), []byte("last")))
		go a.Close(CodeNormal, "")
		time.Sleep(500 * time.Millisecond)
		got, err := b.Read(t.Context())
		require.NoError(t, err)
		require.Equal(t, "last", string(got))
		_, err = b.Read(t.Context())
		var e *CloseError
		require.ErrorAs(t, err, &e)
		require.Equal(t, CodeNormal, e.Code)
	})
}

func TestLostConnectionIsUnknown(t *testing.T) {
	eachRole(t, Options{}, func(t *testing.T, c *Conn, p *rawPeer) {
		p.Close()
		_, err := waitDone(t, c)
		require.ErrorContains(t, err, "wsconn: read: ")
		require.Equal(t, retry.Unknown, retry.ClassOf(err))
		var e *CloseError
		require.False(t, errors.As(err, &e))
	})
}

func TestReadEndsWithContextAlone(t *testing.T) {
	eachRole(t, Options{}, func(t *testing.T, c *Conn, p *rawPeer) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Read(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		p.send(t, opText, []byte("later"))
		got, err := c.Read(t.Context())
		require.NoError(t, err)
		require.Equal(t, "later", string(got))
	})
}

func TestWriteEndsWithContextAlone(t *testing.T) {
	eachRole(t, Options{Heartbeat: -1}, func(t *testing.T, c *Conn, p *rawPeer) {
		first := make(chan error, 1)
		go func() { first <- c.Write(t.Context(), []byte("first")) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, c.Write(ctx, []byte("second")), context.DeadlineExceeded)
		for range 50 {
			require.Error(t, c.Write(ctx, []byte("third")), "ctx has ended")
		}
		_, got, err := p.receive()
		require.NoError(t, err)
		require.Equal(t, "first", string(got))
		require.NoError(t, <-first)
		for range 50 {
			require.Error(t, c.Write(ctx, []byte("third")), "ctx has ended")
		}
		go func() { _ = c.Write(t.Context(), []byte("fourth")) }()
		_, got, err = p.receive()
		require.NoError(t, err)
		require.Equal(t, "fourth", string(got))
	})
}

// TestTwoEndsNeverBlockEachOther: the goroutine that reads never waits for its own writer, so that
// it keeps reading while the peer takes no bytes, and answers the pings afterwards.
func TestTwoEndsNeverBlockEachOther(t *testing.T) {
	eachRole(t, Options{Heartbeat: -1}, func(t *testing.T, c *Conn, p *rawPeer) {
		want := bytes.Repeat([]byte("x"), 3*maxPart)
		written := make(chan error, 1)
		go func() { written <- c.Write(t.Context(), want) }()
		for range 20 {
			p.send(t, opPing, []byte("p"))
			p.send(t, opText, []byte("in"))
			got, err := c.Read(t.Context())
			require.NoError(t, err)
			require.Equal(t, "in", string(got))
			time.Sleep(time.Second)
		}
		pongs, got, isPongFirst := 0, 0, false
		for pongs < 20 || got < len(want) {
			op, payload, err := p.receive()
			require.NoError(t, err)
			if op == opPong {
				pongs++
				isPongFirst = isPongFirst || got < len(want)
				continue
			}
			got += len(payload)
		}
		require.True(t, isPongFirst, "the pings waited for the whole message")
		go p.discard()
		require.NoError(t, <-written)
	})
}

func TestSlowReaderEndsConnection(t *testing.T) {
	eachRole(t, Options{Heartbeat: -1}, func(t *testing.T, c *Conn, p *rawPeer) {
		start := time.Now()
		err := c.Write(t.Context(), make([]byte, 1<<20))
		require.ErrorIs(t, err, ErrSlowReader)
		require.Equal(t, 30*time.Second, time.Since(start))
		require.Equal(t, retry.Unknown, retry.ClassOf(err))
		_, err = c.Read(t.Context())
		require.ErrorIs(t, err, ErrSlowReader)
		time.Sleep(time.Minute)
		_, err = io.Copy(io.Discard, p)
		require.NoError(t, err, "without Close, the network connection stays open")
	})
}

func TestProgressExtendsWriteTimeout(t *testing.T) {
	eachRole(t, Options{Heartbeat: -1}, func(t *testing.T, c *Conn, p *rawPeer) {
		go func() {
			for {
				time.Sleep(25 * time.Second)
				if _, err := io.CopyN(io.Discard, p, maxPart+1<<10); err != nil {
					return
				}
			}
		}()
		require.NoError(t, c.Write(t.Context(), make([]byte, 6*maxPart)))
	})
}

func TestPingsArePeriodic(t *testing.T) {
	eachRole(t, Options{}, func(t *testing.T, c *Conn, p *rawPeer) {
		start := time.Now()
		for i := range 10 {
			op, payload, err := p.receive()
			require.NoError(t, err)
			require.Equal(t, byte(opPing), op)
			require.Equal(t, time.Duration(i+1)*15*time.Second, time.Since(start))
			p.send(t, opPong, payload)
		}
	})
}

func TestSilentPeerEndsAfterTwoPings(t *testing.T) {
	for _, messages := range []int{0, 1} {
		eachRole(t, Options{}, func(t *testing.T, c *Conn, p *rawPeer) {
			for range messages {
				time.Sleep(14 * time.Second)
				p.send(t, opText, nil)
				_, err := c.Read(t.Context())
				require.NoError(t, err)
			}
			pings := make(chan int, 1)
			go func() {
				n := 0
				for op, _, err := p.receive(); err == nil; op, _, err = p.receive() {
					if op == opPing {
						n++
					}
				}
				pings <- n
			}()
			start := time.Now()
			_, err := waitDone(t, c)
			require.ErrorIs(t, err, ErrSilent)
			require.Equal(t, retry.Unknown, retry.ClassOf(err))
			took := time.Since(start)
			require.Equal(t, map[int]time.Duration{0: 45 * time.Second, 1: 31 * time.Second}[messages], took)
			require.ErrorIs(t, c.Write(t.Context(), nil), ErrSilent)
			require.Equal(t, 2, <-pings)
		})
	}
}

func TestWriteAfterDoneReturnsCause(t *testing.T) {
	eachRole(t, Options{}, func(t *testing.T, c *Conn, p *rawPeer) {
		go p.discard()
		c.finish(ErrSilent) // before the network connection is closed
		require.ErrorIs(t, c.Write(t.Context(), nil), ErrSilent)
	})
}

func TestWriteThatWaitedUntilDoneReturnsCause(t *testing.T) {
	eachRole(t, Options{}, func(t *testing.T, c *Conn, p *rawPeer) {
		errs := make(chan error, 1)
		go func() { _ = c.Write(t.Context(), []byte("first")) }()
		synctest.Wait() // the peer reads no frame yet
		go func() { errs <- c.Write(t.Context(), []byte("second")) }()
		synctest.Wait()
		c.finish(ErrSilent)
		go p.discard()
		require.ErrorIs(t, <-errs, ErrSilent)
	})
}

func TestReceivedBytesAnswerPings(t *testing.T) {
	eachRole(t, Options{}, func(t *testing.T, c *Conn, p *rawPeer) {
		go p.discard()
		frame := p.frame(opText, bytes.Repeat([]byte("x"), 60))
		for i := range frame { // a large message over a slow network
			_, err := p.Write(frame[i : i+1])
			require.NoError(t, err)
			time.Sleep(14 * time.Second)
		}
		_, err := c.Read(t.Context())
		require.NoError(t, err)
	})
}

func TestUnreadMessagesAreNotSilence(t *testing.T) {
	eachRole(t, Options{}, func(t *testing.T, c *Conn, p *rawPeer) {
		frames := make(chan []byte, 1000)
		frames <- p.frame(opText, []byte("m"))
		frames <- p.frame(opText, []byte("m")) // the answers follow this message, which c does not read yet
		go func() {
			for f := range frames {
				_, _ = p.Write(f)
			}
		}()
		go func() {
			defer close(frames)
			for {
				op, payload, err := p.receive()
				if err != nil {
					return
				}
				if op == opPing {
					frames <- p.frame(opPong, payload)
				}
			}
		}()
		for range 2 {
			time.Sleep(10 * time.Minute)
			_, err := c.Read(t.Context())
			require.NoError(t, err)
		}
		time.Sleep(10 * time.Minute)
		select {
		case <-c.Done():
			t.Error("the connection ended")
		default:
		}
		p.Close()
		time.Sleep(time.Second) // ends the goroutines of the peer
	})
}

func TestHeartbeatOff(t *testing.T) {
	eachRole(t, Options{Heartbeat: -1}, func(t *testing.T, c *Conn, p *rawPeer) {
		time.Sleep(24 * time.Hour)
		p.send(t, opText, []byte("late"))
		_, err := c.Read(t.Context())
		require.NoError(t, err)
	})
}

func TestCloseWaitsAtMostOneSecond(t *testing.T) {
	for name, peer := range map[string]func(t *testing.T, c *Conn, p *rawPeer){
		"reads and never closes": func(_ *testing.T, _ *Conn, p *rawPeer) { go p.discard() },
		"reads nothing":          func(*testing.T, *Conn, *rawPeer) {},
		"blocks a write": func(t *testing.T, c *Conn, _ *rawPeer) {
			go func() { _ = c.Write(t.Context(), make([]byte, 1<<20)) }()
			synctest.Wait()
		},
		"sends messages": func(_ *testing.T, _ *Conn, p *rawPeer) {
			go p.discard()
			go func() {
				for {
					if _, err := p.Write(p.frame(opText, []byte("more"))); err != nil {
						return
					}
					time.Sleep(time.Millisecond)
				}
			}()
			time.Sleep(time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachRole(t, Options{}, func(t *testing.T, c *Conn, p *rawPeer) {
				peer(t, c, p)
				start := time.Now()
				c.Close(CodeShutdown, "")
				require.LessOrEqual(t, time.Since(start), time.Second)
				require.ErrorIs(t, c.Write(t.Context(), nil), ErrClosed)
				c.Close(CodeNormal, "")
				require.LessOrEqual(t, time.Since(start), time.Second)
				p.Close()
				time.Sleep(time.Second) // ends the goroutines of the peer
			})
		})
	}
}

func TestCloseEndsGoroutines(t *testing.T) {
	eachRole(t, Options{}, func(t *testing.T, c *Conn, p *rawPeer) {
		go p.discard()
		go c.Close(CodeNormal, "")
		synctest.Wait()
		c.Close(CodeNormal, "")
		for _, stack := range bubbleStacks(t) {
			require.NotContains(t, stack, "receiveAll")
			require.NotContains(t, stack, "watch")
		}
	})
}

// bubbleStacks returns the stacks of the goroutines of this bubble. The servers of other tests may
// still be closing.
func bubbleStacks(t *testing.T) []string {
	t.Helper()
	all := make([]byte, 1<<20)
	stacks := strings.Split(string(all[:runtime.Stack(all, true)]), "\n\n")
	_, bubble, ok := strings.Cut(stacks[0], "synctest bubble ")
	require.True(t, ok)
	bubble, _, _ = strings.Cut(bubble, "]")
	return slices.DeleteFunc(stacks, func(s string) bool { return !strings.Contains(s, "synctest bubble "+bubble+"]") })
}

func TestClosePeerGetsEcho(t *testing.T) {
	eachRole(t, Options{}, func(t *testing.T, c *Conn, p *rawPeer) {
		p.send(t, opClose, append([]byte{0x03, 0xe8}, "bye"...))
		time.Sleep(100 * time.Millisecond)
		code, reason := p.receiveClose(t)
		require.Equal(t, CodeNormal, code)
		require.Equal(t, "bye", reason)
		_, _, err := p.receive()
		require.ErrorIs(t, err, io.EOF, "without Close, the network connection stays open")
	})
}

func TestInvalidFrameEndsConnection(t *testing.T) {
	eachRole(t, Options{}, func(t *testing.T, c *Conn, p *rawPeer) {
		p.send(t, 0x83, nil) // an unknown opcode
		code, _ := p.receiveClose(t)
		require.Equal(t, 1002, code)
		_, _, err := p.receive()
		require.ErrorIs(t, err, io.EOF, "without Close, the network connection stays open")
		_, err = c.Read(t.Context())
		require.ErrorContains(t, err, "opcode")
	})
}

// A brokenConn accepts no more bytes after fail.
type brokenConn struct {
	net.Conn
	fail atomic.Bool
}

func (c *brokenConn) Write(p []byte) (int, error) {
	if c.fail.Load() {
		return 0, syscall.EPIPE
	}
	return c.Conn.Write(p)
}

func TestCloseFrameIsBetterCauseThanFailedWrite(t *testing.T) {
	for _, hasClose := range []bool{true, false} {
		inBubble(t, func(t *testing.T) {
			n, broken := newPipeNet(), new(brokenConn)
			n.wrap = func(conn net.Conn) net.Conn {
				broken.Conn = conn
				return broken
			}
			c, p := newRawServerOver(t, n, Options{})
			broken.fail.Store(true)
			if hasClose {
				go func() {
					time.Sleep(500 * time.Millisecond)
					p.send(t, opClose, []byte{0x03, 0xf0})
				}()
			}
			start := time.Now()
			err := c.Write(t.Context(), []byte("m"))
			var e *CloseError
			require.Equal(t, hasClose, errors.As(err, &e), "%v", err)
			if !hasClose {
				require.ErrorIs(t, err, syscall.EPIPE)
				require.Equal(t, retry.Unknown, retry.ClassOf(err))
				require.Equal(t, time.Second, time.Since(start))
			}
		})
	}
}

func TestCloseReasonFitsFrame(t *testing.T) {
	for reason, want := range map[string]string{
		strings.Repeat("a", 200): strings.Repeat("a", 123),
		strings.Repeat("ä", 100): strings.Repeat("ä", 61),
		"a\xffb":                 "ab",
	} {
		eachRole(t, Options{}, func(t *testing.T, c *Conn, p *rawPeer) {
			go c.Close(CodeInternal, reason)
			code, got := p.receiveClose(t)
			require.Equal(t, CodeInternal, code)
			require.Equal(t, want, got)
			p.Close()
		})
	}
}

func TestPingFloodIsBounded(t *testing.T) {
	eachRole(t, Options{Heartbeat: -1}, func(t *testing.T, c *Conn, p *rawPeer) {
		go func() {
			for {
				if _, err := p.Write(p.frame(opPing, bytes.Repeat([]byte("p"), 125))); err != nil {
					return
				}
			}
		}()
		took, err := waitDone(t, c)
		require.Error(t, err)
		require.Less(t, took, 30*time.Second, "the answers to the pings are not bounded")
	})
}

func TestWriteEndsConnectionIfAnswersFillQueue(t *testing.T) {
	eachRole(t, Options{Heartbeat: -1, WriteTimeout: -1}, func(t *testing.T, c *Conn, p *rawPeer) {
		for range 1023 {
			p.send(t, opPing, nil)
		}
		synctest.Wait()
		start := time.Now()
		err := c.Write(t.Context(), make([]byte, maxPart))
		require.ErrorIs(t, err, sendq.ErrFull)
		require.LessOrEqual(t, time.Since(start), time.Second)
	})
}

func TestConcurrentClose(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newPair(t, Options{}, nil)
		var wg sync.WaitGroup
		for _, c := range []*Conn{a, b} {
			for range 4 {
				wg.Go(func() { c.Close(CodeNormal, "") })
				wg.Go(func() { _ = c.Write(t.Context(), make([]byte, 3*maxPart)) })
				wg.Go(func() {
					for {
						if _, err := c.Read(t.Context()); err != nil {
							return
						}
					}
				})
			}
		}
		wg.Wait()
	})
}

// A caller that closes the connection as soon as Read fails does not replace the close code.
func TestCloseAfterReadKeepsCode(t *testing.T) {
	for range 200 {
		inBubble(t, func(t *testing.T) {
			c, p := newRawServer(t, Options{MaxMessage: 10})
			for range 8 {
				go func() {
					<-c.Done()
					c.Close(CodeNormal, "")
				}()
			}
			p.send(t, opText, []byte("01234567890"))
			code, _ := p.receiveClose(t)
			require.Equal(t, 1009, code)
		})
	}
}
