// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/internal/strictjson"
)

func altarLiveProtocol() liveProtocol {
	return liveProtocol{
		open: map[string]func(T, *Input, *liveServer) (Step, error){"host_script": altarOpenLive},
		fixture: func(_ string, in strictjson.Value) string {
			if options := in.Get("options"); options != nil {
				return string(options)
			}
			return "{}"
		},
		notLive: func(in, step strictjson.Value) string {
			switch {
			case step.Get("restart") != nil:
				return "several processes"
			case in.Get("options").Get("heartbeat_ms") != nil:
				return "clock" // a call and a heartbeat end at the same moment
			case step.Get("drain") != nil, step.Get("reload") != nil, in.Get("options").Get("audit") != nil:
				return "private state"
			}
			return ""
		},
		transports: []string{"tcp"}, needsLines: func(step strictjson.Value) bool { return step.Get("wireB64") != nil },
		shared: "{}", needsOwn: func(step strictjson.Value) bool { // the moment of the start, or ids that the Host chooses
			wire, _ := step.Get("wire").Text()
			return step.Get("expires") != nil || strings.Contains(wire, `"CreateSession","session_id":"sess-`)
		},
		gap: 100 * time.Millisecond,
	}
}

// altarLive is the fixture of a host_script in another process.
type altarLive struct {
	*liveServer
	*altarSessions
	conns map[string]*altarLiveConn
	wg    sync.WaitGroup // of exchanges
	altarEvents
}

type altarLiveConn struct {
	*liveConn
	header   http.Header
	token    atomic.Pointer[string] // of the last Authenticate
	announce []byte                 // of a Runtime
	closed   atomic.Bool            // by a step
}

// altarSessions gives each run separate sessions: ids that the caller suggests have a suffix, and
// those that the Host chooses stand for sess-1, sess-2 and so on of the script.
type altarSessions struct {
	suffix string // empty if the Host has no other runs: then the ids are those of the script

	mu    sync.Mutex
	ids   []string          // of the Host, in the order of the script; guarded by mu
	owner map[string]string // the Authorization of the creator by session; guarded by mu
}

var altarSessionText = regexp.MustCompile(`("session_id"\s*:\s*")([A-Za-z0-9][A-Za-z0-9._:@-]{0,63})(")`)

// translate replaces the session ids of a text. The mutex is held during the calls of f.
func (x *altarSessions) translate(text []byte, f func(id string) string) []byte {
	if x.suffix == "" {
		return text
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return altarSessionText.ReplaceAllFunc(text, func(b []byte) []byte {
		m := altarSessionText.FindSubmatch(b)
		return slices.Concat(m[1], []byte(f(string(m[2]))), m[3])
	})
}

// toRun translates a text of the script.
func (x *altarSessions) toRun(text []byte) []byte {
	return x.translate(text, func(id string) string {
		n, err := strconv.Atoi(strings.TrimPrefix(id, "sess-"))
		switch {
		case err == nil && n >= 1 && n <= len(x.ids):
			id = x.ids[n-1]
		case !strings.HasPrefix(id, "s-"):
			id += x.suffix
		}
		return id
	})
}

// toScript translates a text of the Host.
func (x *altarSessions) toScript(text []byte) []byte {
	return x.translate(text, func(id string) string {
		id, isOwn := strings.CutSuffix(id, x.suffix)
		if !isOwn && !strings.HasPrefix(id, "s-") {
			n := slices.Index(x.ids, id)
			if n < 0 {
				n = len(x.ids)
				x.ids = append(x.ids, id)
			}
			id = fmt.Sprintf("sess-%d", n+1)
		}
		return id
	})
}

// created remembers the sessions that an answer to this caller names.
func (x *altarSessions) created(authorization string, text []byte) {
	if !bytes.Contains(text, []byte(`"SessionCreated"`)) {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, m := range altarSessionText.FindAllSubmatch(text, -1) {
		x.owner[string(m[2])] = authorization
	}
}

// destroy ends the sessions of the run.
func (f *altarLive) destroy() {
	f.mu.Lock()
	owners := maps.Clone(f.owner)
	f.mu.Unlock()
	for id, authorization := range owners {
		header := http.Header{"Authorization": {authorization}}
		f.ask(header, fmt.Sprintf(`{"type":"DestroySession","session_id":%q,"request_id":"last"}`, id))
	}
}

func altarOpenLive(t T, in *Input, s *liveServer) (Step, error) {
	if in.Has("options") {
		in.Raw("options")
	}
	f := &altarLive{liveServer: s, conns: map[string]*altarLiveConn{}, altarSessions: &altarSessions{owner: map[string]string{}}}
	if s.isShared {
		f.suffix = "-u" + strconv.FormatInt(time.Now().UnixNano(), 36)
	}
	if err := s.start(nil); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		f.wg.Wait()
		if s.isShared {
			f.destroy()
			f.withdraw()
		}
	})
	return f.step, nil
}

func (f *altarLive) step(in *Input) (Answer, error) {
	if in.Repeatable() {
		if err := f.act(in); err != nil {
			return nil, err
		}
	}
	time.Sleep(quiet)
	return f.answer(in), in.Err()
}

// act carries out the action of a step.
func (f *altarLive) act(in *Input) error {
	switch {
	case in.Has("open"):
		header := http.Header{}
		if in.Has("identity") {
			token := in.String("identity")
			if in.Has("expires") {
				token = fmt.Sprintf("%s@%d", token, in.Int64("expires"))
			}
			header.Set("Authorization", "Bearer tok-"+token)
		}
		return f.open(in.String("open"), header)
	case in.Has("send"):
		c := f.conns[in.String("send")]
		wire := in.Wire("wire")
		if c == nil {
			in.Fail("send", "no such connection")
			break
		}
		wire = f.toRun(wire)
		if bytes.Contains(wire, []byte(`"AnnounceRuntime"`)) {
			c.announce = wire
		}
		var m struct{ Type, Token string }
		if json.Unmarshal(wire, &m) == nil && m.Type == "Authenticate" {
			c.token.Store(&m.Token)
		}
		f.t.Logf("sent     %s", wire)
		_ = c.write(wire) // until the Host closes the connection
	case in.Has("close"):
		c := f.conns[in.String("close")]
		if c == nil {
			in.Fail("close", "no such connection")
			break
		}
		c.closed.Store(true)
		c.close()
	case in.Has("http"):
		f.wg.Go(f.exchange(in, http.HandlerFunc(f.serve)))
	default:
		if !in.Bool("tick") {
			in.Fail("tick", "a step without an action")
		}
	}
	return nil
}

// withdraw takes back what the Runtimes fulfill in later sessions.
func (f *altarLive) withdraw() {
	for _, c := range f.conns {
		if c.announce == nil {
			continue
		}
		c.closed.Store(true)
		c.close()
		f.ask(c.header, string(c.announce), `{"type":"FulfillTools","session_id":"*","tool_names":[],"request_id":"last"}`)
	}
}

// ask sends messages on a connection, and waits for the answer to the request "last".
func (f *altarLive) ask(header http.Header, messages ...string) {
	answered := make(chan struct{}, 1)
	c, err := f.connect(header, func(frame []byte, err error) {
		if err != nil || bytes.Contains(frame, []byte(`"last"`)) {
			select {
			case answered <- struct{}{}:
			default:
			}
		}
	})
	if err != nil {
		return
	}
	defer c.close()
	for _, wire := range messages {
		_ = c.write([]byte(wire)) // a Host that has exited needs nothing
	}
	select {
	case <-answered:
	case <-time.After(f.client.Timeout):
	}
}

// connect connects to the Host. A connection of lines is authenticated by its first message.
func (f *altarLive) connect(header http.Header, received func([]byte, error)) (*liveConn, error) {
	token := strings.TrimPrefix(header.Get("Authorization"), "Bearer ")
	if f.pool.Transport == "" || token == "" {
		return f.liveServer.connect(altar.WebSocketPath, "altar.v1", header, received)
	}
	answered, isFirst := make(chan struct{}), true
	c, err := f.liveServer.connect("", "", nil, func(message []byte, err error) {
		if isFirst {
			isFirst = false
			close(answered)
			if err == nil {
				return
			}
		}
		received(message, err)
	})
	if err != nil {
		return nil, err
	}
	if err := c.write(fmt.Appendf(nil, `{"type":"Authenticate","token":%q}`, token)); err != nil {
		return nil, err
	}
	select {
	case <-answered:
		return c, nil
	case <-time.After(f.client.Timeout):
		return nil, errors.New("the Host does not answer Authenticate")
	}
}

// serve is the Host for an exchange of the script.
func (f *altarLive) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err) // a body in memory
	}
	r.Body = io.NopCloser(bytes.NewReader(f.toRun(body)))
	rewriteAnswers(f.liveServer, func(answer []byte) []byte {
		f.created(r.Header.Get("Authorization"), answer)
		return f.toScript(answer)
	}).ServeHTTP(w, r)
}

func (f *altarLive) open(name string, header http.Header) error {
	c := &altarLiveConn{header: header}
	f.conns[name] = c
	authorization := header.Get("Authorization")
	var err error
	c.liveConn, err = f.connect(header, func(frame []byte, err error) {
		if token := c.token.Load(); token != nil && bytes.Contains(frame, []byte(`"Authenticated"`)) {
			authorization = "Bearer " + *token
		}
		switch {
		case err == nil:
			f.created(authorization, frame)
			f.add(altarEvent{name: name, message: altarProjected(f.toScript(frame))})
		case !c.closed.Load():
			f.add(altarEvent{name: name, closed: true})
		}
	})
	return err
}
