// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"io"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A script in real time is repeated, with longer pauses, while its answer is not the
// wanted one, and twice at most.
func TestScriptLive(t *testing.T) {
	const begin = `"in":{"steps":[{"do":"put"},{"do":"take"}]},"want":{"steps":[{},`
	for _, tt := range []struct {
		name    string
		work    time.Duration // between a put and the moment when take returns it
		reads   bool          // take changes nothing
		limit   time.Duration
		want    string
		opened  int
		message string
	}{
		{"at once", 0, false, 2 * time.Second, `{"count":1}]}`, 1, ""},
		{"after a short pause", 200 * time.Millisecond, false, 2 * time.Second, `{"count":1}]}`, 2, ""},
		{"after a long pause", 900 * time.Millisecond, false, 2 * time.Second, `{"count":1}]}`, 3, ""},
		{"by a repeated step", 900 * time.Millisecond, true, 2 * time.Second, `{"count":1}]}`, 1, ""},
		{"too late", time.Minute, false, 2 * time.Second, `{"count":1}]}`, 3, "want.steps[1].count: want 1, got 0"},
		{"wrong for good", 0, true, 2 * time.Second, `{"count":7}]}`, 3, "want.steps[1].count: want 7, got 1"},
		{"without a time to settle", 200 * time.Millisecond, true, 0, `{"count":1}]}`, 1, "want.steps[1].count: want 1, got 0"},
		{"not to be opened", -1, false, 2 * time.Second, `{"count":1}]}`, 1, "opening the fixture: something broke"},
		{"broken", 0, false, 2 * time.Second, `{"count":1},{}]}`, 0, "want.steps has 3 steps"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opened, acted := 0, 0
				open := func(T, *Input) (Step, error) {
					if opened++; tt.work < 0 {
						return nil, errBroken
					}
					var count atomic.Int64
					return func(in *Input) (Answer, error) {
						if in.String("do") == "put" {
							time.AfterFunc(tt.work, func() { count.Add(1) })
							return Answer{}, nil
						}
						if tt.reads && in.Repeatable() {
							acted++
						}
						synctest.Wait()
						return Answer{"count": count.Load()}, nil
					}, nil
				}
				script := Script{Live: open, Settle: tt.limit}
				res := runOne(t, Protocol{Name: "fake", Ops: map[string]Op{"script": script.Run}}, "script", begin+tt.want)
				require.Equal(t, tt.opened, opened)
				require.LessOrEqual(t, acted, opened, "a repeated step acts once")
				if tt.message == "" {
					require.Equal(t, StatusPassed, res.Status, res.Message)
					return
				}
				require.Equal(t, StatusFailed, res.Status)
				require.Contains(t, res.Message, tt.message)
				time.Sleep(time.Minute) // until the work is done
			})
		})
	}
}

// The effect of a step may follow a moment after the time of the next step.
func TestScriptLiveTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := func(T, *Input) (Step, error) {
			var count atomic.Int64
			return func(in *Input) (Answer, error) {
				if in.String("do") == "put" {
					time.Sleep(10 * time.Millisecond)
					time.AfterFunc(time.Second, func() { count.Add(1) })
					return Answer{}, nil
				}
				return Answer{"count": count.Load()}, nil
			}, nil
		}
		script := Script{Live: open, Settle: 2 * time.Second}
		res := runOne(t, Protocol{Name: "fake", Ops: map[string]Op{"script": script.Run}}, "script",
			`"in":{"steps":[{"do":"put"},{"at":1000,"do":"take"}]},"want":{"steps":[{},{"count":1}]}`)
		require.Equal(t, StatusPassed, res.Status, res.Message)
		time.Sleep(time.Minute) // until the work is done
	})
}

// A step that only reads just before a moment runs earlier, and no pause of a repeated script moves the moments.
func TestScriptLiveMoments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var moments []time.Duration
		open := func(T, *Input) (Step, error) {
			start := time.Now()
			return func(in *Input) (Answer, error) {
				in.Bool("tick")
				moments = append(moments, time.Since(start))
				return Answer{"count": 1}, nil
			}, nil
		}
		script := Script{Live: open, Settle: 2 * time.Second}
		res := runOne(t, Protocol{Name: "fake", Ops: map[string]Op{"script": script.Run}}, "script",
			`"in":{"steps":[{"tick":true},{"at":999,"tick":true},{"at":1000,"tick":true}]},"want":{"steps":[{"count":1},{"count":1},{"count":7}]}`)
		require.Equal(t, StatusFailed, res.Status)
		run := []time.Duration{0, 750 * time.Millisecond, time.Second}
		require.Equal(t, slices.Concat(run, run, run), moments)
	})
	for id, why := range map[string]string{
		"altar-host-036":       "",
		"altar-host-002":       "", // moments 100 ms apart
		"altar-host-017":       "clock",
		"altar-host-016":       "clock", // an action just before a moment
		"a2e-host-009":         "clock",
		"arc-server-038":       "",
		"arc-server-edges-046": "clock",
		"air-receiving-031":    "clock",
		"altar-host-044":       "several processes",
		"a2e-host-edges-005":   "own option",
		"altar-host-049":       "private state",
		"altar-runtime-001":    "other side",
		"accp-websocket-001":   "",
	} {
		i := slices.IndexFunc(Embedded().Cases(), func(c *Case) bool { return c.ID == id })
		require.GreaterOrEqual(t, i, 0, id)
		require.Equal(t, why, Embedded().Cases()[i].NotLive(4*time.Minute, LiveOptions{}), id)
	}
}

// A server has one case after the other, unless a case needs its own, or all have one.
func TestLiveServerPool(t *testing.T) {
	set := Embedded().Filter(func(c *Case) bool {
		return c.Protocol == "accp" && c.Suite == "http" && c.NotLive(time.Second, LiveOptions{}) == ""
	})
	for _, isFresh := range []bool{false, true} {
		starts, ends := 0, 0
		p, end, err := LiveServer("accp", LiveOptions{Limit: 20 * time.Second, Fresh: isFresh, Start: func(string, string) (*Started, error) {
			starts++
			desk, err := newACCPDesk()
			s := httptest.NewServer(desk)
			return &Started{URL: s.URL, End: func() { ends++; s.Close(); _ = desk.Close() }}, err
		}})
		require.NoError(t, err)
		report := Run(&caseT{}, set, []Protocol{p}, nil)
		require.True(t, report.Passed(), "%v", report.Results)
		end()
		require.Equal(t, isFresh, starts >= len(set.Cases()), "%d servers of %d cases", starts, len(set.Cases()))
		require.Equal(t, starts, ends)
	}
}

// A client receives an answer in pieces, and a cut one leaves its connection open in one direction.
func TestLiveClientFears(t *testing.T) {
	for _, tt := range []struct{ protocol, op, post, in string }{
		{"arc", "client_script", "/arc", `{"client":{"requestAgent":"a"},"steps":[{"call":{"method":"chat.start"},"replies":[{"status":200,` +
			`"contentType":"text/event-stream","body":"event: stream\ndata: {\"text\":\"the first and only event\"}\n\n"}]}]}`},
		{"accp", "client-script", "/accp/v1/frames", `{"hello":false,"steps":[{"do":"call","message":{},"answers":[{"cut":true,` +
			`"frames":["@server>done:execute{a:1|b:2|c:3|d:4}[mid:5e0000000001,seq:2,ts:1714000000,sid:s1]"]}]}]}`},
		{"air", "poll_script", "/relay.test/inbox", `{"fixture":{"now":"2026-05-28T09:00:00.000Z"},"steps":[{"poll":true,"replies":[{"status":200,"cut":true,` +
			`"body":"{\"envelopes\":[],\"cursor\":\"a long one, of many bytes\""}]}]}`},
	} {
		t.Run(tt.protocol, func(t *testing.T) {
			var reads int
			var answer []byte
			var late error
			open := func(_ T, url string, _ json.RawMessage, _ func(json.RawMessage)) (Client, error) {
				return rawClient(func() {
					host, _, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
					conn, err := net.Dial("tcp", host)
					require.NoError(t, err)
					defer conn.Close()
					_, err = io.WriteString(conn, "POST "+tt.post+" HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
					require.NoError(t, err)
					piece := make([]byte, 4096)
					for {
						n, err := conn.Read(piece)
						answer = append(answer, piece[:n]...)
						if err != nil {
							require.ErrorIs(t, err, io.EOF)
							break
						}
						reads++
					}
					for range 3 {
						_, late = io.WriteString(conn, "more")
						time.Sleep(20 * time.Millisecond)
					}
				}), nil
			}
			p, err := LiveClient(tt.protocol, "", time.Second, open)
			require.NoError(t, err)
			p.Name = "fake"
			runOne(t, p, tt.op, `"in":`+tt.in+`,"want":{"steps":[{}]}`) // fails: the request is not one of the protocol
			require.Greater(t, reads, 5)
			require.Contains(t, string(answer), "Transfer-Encoding: chunked")
			require.NotContains(t, string(answer), "\r\n0\r\n", "the end of the chunks")
			require.NoError(t, late, "the other direction")
		})
	}
}

// A rawClient does the same for each action.
type rawClient func()

func (c rawClient) Do(json.RawMessage) (json.RawMessage, error) {
	c()
	return json.RawMessage(`{"outcome":"truncated"}`), nil
}

func (c rawClient) Close() {}

// A request of a client with jitter may come at half of the wanted delay, and at any later time.
func TestLaterRequests(t *testing.T) {
	for _, tt := range []struct {
		path, want, have string
		ok               bool
	}{
		{"want.steps[0].requests[1].at", "1000", "500", true},
		{"want.steps[0].requests[1].at", "1000", "499", false},
		{"want.steps[0].requests[1].at", "0", "90000", true},
		{"want.steps[0].nextInMs", "5000", "4000", true},
		{"want.steps[0].status", "200", "400", false},
		{"want.steps[0].requests[1].at", "1000", `"soon"`, false},
	} {
		require.Equal(t, tt.ok, isLater(tt.path, strictjson.Value(tt.want), strictjson.Value(tt.have)), "%+v", tt)
	}
}
