// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar/internal/transport"
	"github.com/fivewire/fivewire/internal/sse"
)

// ALT-D04: WebSocket.
func TestWebSocketRules(t *testing.T) {
	h := testHost(t, &HostOptions{Auth: Auth{Authenticator: keys()}, Limits: Limits{MaxMessage: 1000}, AllowedOrigins: []string{"https://friend.example"}})
	ts := server(t, h)
	url := "ws" + strings.TrimPrefix(ts.URL, "http") + WebSocketPath
	dial := func(header http.Header, protocols ...string) (*websocket.Conn, *http.Response, error) {
		return websocket.Dial(t.Context(), url, &websocket.DialOptions{HTTPClient: ts.Client(), HTTPHeader: header, Subprotocols: protocols})
	}
	user := keyOf(testUser)

	t.Run("transport.Subprotocol", func(t *testing.T) {
		_, res, err := dial(user)
		require.Error(t, err)
		require.Equal(t, http.StatusBadRequest, res.StatusCode)
	})
	t.Run("origin", func(t *testing.T) {
		header := user.Clone()
		header.Set("Origin", "https://evil.example")
		_, res, err := dial(header, transport.Subprotocol)
		require.Error(t, err)
		require.Equal(t, http.StatusForbidden, res.StatusCode)
		header.Set("Origin", "https://friend.example")
		c, _, err := dial(header, transport.Subprotocol)
		require.NoError(t, err)
		require.NoError(t, c.Close(websocket.StatusNormalClosure, ""))
	})
	t.Run("failed authentication", func(t *testing.T) {
		_, res, err := dial(http.Header{APIKeyHeader: {"wrong"}}, transport.Subprotocol)
		require.Error(t, err)
		require.Equal(t, http.StatusUnauthorized, res.StatusCode)
		_, err = DialWebSocket(t.Context(), ts.URL, &WebSocketDialOptions{HTTPClient: ts.Client(), Header: http.Header{APIKeyHeader: {"wrong"}}})
		require.ErrorIs(t, err, ReasonUnauthenticated)
	})
	t.Run("refused handshake", func(t *testing.T) {
		c, _, err := dial(keyOf(testService), transport.Subprotocol)
		require.NoError(t, err)
		require.NoError(t, c.Write(t.Context(), websocket.MessageText, []byte(`{"type":"AnnounceRuntime","runtime_id":"x","protocol_version":"9.0.0"}`)))
		_, data, err := c.Read(t.Context())
		require.NoError(t, err)
		require.Contains(t, string(data), `"unsupported_version"`)
		_, _, err = c.Read(t.Context())
		require.Equal(t, websocket.StatusPolicyViolation, websocket.CloseStatus(err))
	})
	t.Run("binary frame", func(t *testing.T) {
		c, _, err := dial(user, transport.Subprotocol)
		require.NoError(t, err)
		require.NoError(t, c.Write(t.Context(), websocket.MessageBinary, []byte(`{"type":"Ping"}`)))
		_, _, err = c.Read(t.Context())
		require.Equal(t, websocket.StatusUnsupportedData, websocket.CloseStatus(err))
	})
	t.Run("too large", func(t *testing.T) {
		c, _, err := dial(user, transport.Subprotocol)
		require.NoError(t, err)
		require.NoError(t, c.Write(t.Context(), websocket.MessageText, bytes.Repeat([]byte("x"), 2000)))
		_, _, err = c.Read(t.Context())
		require.Equal(t, websocket.StatusMessageTooBig, websocket.CloseStatus(err))
	})
	t.Run("bad frame", func(t *testing.T) { // section f: kept
		c, _, err := dial(user, transport.Subprotocol)
		require.NoError(t, err)
		for _, frame := range []string{`{"type":`, `[]`, `{"type":"Ping"}`} {
			require.NoError(t, c.Write(t.Context(), websocket.MessageText, []byte(frame)))
		}
		for _, want := range []string{"malformed_json", "not_an_object", "Pong"} {
			_, data, err := c.Read(t.Context())
			require.NoError(t, err)
			require.Contains(t, string(data), want)
		}
		require.NoError(t, c.Close(websocket.StatusNormalClosure, ""))
	})
	t.Run("other server", func(t *testing.T) {
		plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, err := websocket.Accept(w, r, nil)
			if err == nil {
				_ = c.CloseNow()
			}
		}))
		defer plain.Close()
		_, err := DialWebSocket(t.Context(), plain.URL, nil)
		require.ErrorContains(t, err, transport.Subprotocol)
		_, err = DialWebSocket(t.Context(), "http://127.0.0.1:1", nil)
		require.Error(t, err)
	})
}

func post(t *testing.T, ts *httptest.Server, body string, header ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, ts.URL+MessagesPath, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer key-user")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := ts.Client().Do(r)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res, string(data)
}

// ALT-D05: rules of HTTP without a vector.
func TestHTTPRules(t *testing.T) {
	s := start(t, httpTransport, &HostOptions{Limits: Limits{MaxMessage: 1000}}, testRuntime("r1", nil))
	ts := server(t, s.h)
	sess, err := s.c.CreateSession(t.Context(), nil)
	require.NoError(t, err)

	res, body := post(t, ts, `{"type":"Ping","pad":"`+strings.Repeat("x", 1000)+`"}`)
	require.Equal(t, http.StatusRequestEntityTooLarge, res.StatusCode)
	require.Contains(t, body, "message_too_large")

	res, body = post(t, ts, `{"type":"Ping"}`, "Authorization", "Bearer wrong")
	require.Equal(t, http.StatusUnauthorized, res.StatusCode)
	require.Equal(t, "Bearer", res.Header.Get("WWW-Authenticate"))
	require.NotContains(t, body, "credentials")

	res, _ = post(t, ts, `{"type":"Pong"}`)
	require.Equal(t, http.StatusBadRequest, res.StatusCode)

	for accept, kind := range map[string]string{"": "application/json", "*/*": "application/json", "text/html, application/*;q=0": "application/json",
		"APPLICATION/X-NDJSON": "application/x-ndjson", "image/png,text/event-stream;q=0.1,application/json": "text/event-stream"} {
		res, _ := post(t, ts, `{"type":"ToolCall","invocation_id":"`+"a"+kind[:4]+`","session_id":"`+sess.ID()+`","tool_name":"math/add","parameters":{"a":1,"b":2}}`, "Accept", accept)
		require.Equal(t, 200, res.StatusCode)
		require.Equal(t, kind, res.Header.Get("Content-Type"), accept)
	}

	res, body = post(t, ts, `{"type":"ToolCall","invocation_id":"i1","session_id":"`+sess.ID()+`","tool_name":"count","parameters":{"n":2}}`, "Accept", "text/event-stream")
	require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
	events := sse.NewReader(strings.NewReader(body), nil)
	for _, id := range []string{"0", "1", "2"} {
		e, err := events.Next()
		require.NoError(t, err)
		require.Equal(t, "StreamChunk", e.Name)
		require.Equal(t, id, e.ID)
	}
	res, body = post(t, ts, `{"type":"ToolCall","session_id":"x","tool_name":"y","request_id":"q"}`, "Accept", "text/event-stream")
	require.Equal(t, 400, res.StatusCode)
	require.Equal(t, "application/json", res.Header.Get("Content-Type"))
	require.Contains(t, body, `"request_id":"q"`)

	res, err = ts.Client().Get(ts.URL + "/elsewhere")
	require.NoError(t, err)
	require.Equal(t, 404, res.StatusCode)
	_ = res.Body.Close()
}

// A client that leaves in mid-stream is seen, and its call ends (ALT-D33).
func TestHTTPClientDisconnect(t *testing.T) {
	s := start(t, httpTransport, &HostOptions{Timing: Timing{ClientGracePeriod: 50 * time.Millisecond}}, testRuntime("r1", nil))
	sess, err := s.c.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	for _, err := range sess.Stream(t.Context(), "ticks", nil, nil) {
		require.NoError(t, err)
		break
	}
	require.NoError(t, s.c.Close())
	s.empty(t)
}

func TestHTTPConnFailures(t *testing.T) {
	answer := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusBadGateway)
	}
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r) }))
	defer ts.Close()
	client := func() *Client {
		return must(NewClient(func(context.Context) (Conn, error) {
			return DialHTTP(t.Context(), ts.URL, &HTTPDialOptions{HTTPClient: ts.Client()})
		}, nil))
	}
	c := client()
	require.ErrorIs(t, c.Ping(t.Context()), ErrDisconnected)
	require.NoError(t, c.Close())

	answer = func(w http.ResponseWriter, _ *http.Request) { // cut off
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"type":`)
	}
	c = client()
	require.ErrorIs(t, c.Ping(t.Context()), ErrDisconnected)
	require.NoError(t, c.Close())
	require.ErrorIs(t, c.Ping(t.Context()), ErrClosed)

	conn := must(DialHTTP(t.Context(), ts.URL+MessagesPath, nil))
	require.Error(t, conn.Send(&ToolCall{}), "cannot be sent")
	require.NoError(t, conn.Close())
	require.ErrorIs(t, conn.Send(&Ping{}), ErrClosed)
	_, err := conn.Receive()
	require.ErrorIs(t, err, ErrClosed)
}

// ALT-135: keys, tokens and certificates.
func TestAuthenticators(t *testing.T) {
	request := func(name, value string) *http.Request {
		r := httptest.NewRequest("POST", "/", nil)
		if name != "" {
			r.Header.Set(name, value)
		}
		return r
	}
	a := AnyAuthenticator(keys(), BearerAuthenticator(TokenVerifierFunc(func(_ context.Context, token string) (*Principal, error) {
		return nil, errors.New("never asked: keys took the token")
	})))
	for _, tt := range []struct {
		name, value string
		want        *Principal
		fails       bool
	}{
		{"X-Api-Key", "key-user", testUser, false},
		{"Authorization", "Bearer key-service", testService, false},
		{"Authorization", "bearer  key-service", testService, false},
		{"Authorization", "Basic key-service", nil, false},
		{"Authorization", "Bearer", nil, false},
		{"", "", nil, false},
		{"X-Api-Key", "key-user ", testUser, false}, // HTTP takes the blank off, the recorder does not
		{"X-Api-Key", "guess", nil, true},
	} {
		r := request(tt.name, tt.value)
		r.Header.Set(tt.name, strings.TrimSpace(tt.value))
		got, err := a.Authenticate(r)
		require.Equal(t, tt.fails, err != nil, tt)
		require.Equal(t, tt.want, got, tt)
	}
	tokens := BearerAuthenticator(TokenVerifierFunc(func(_ context.Context, token string) (*Principal, error) {
		switch token {
		case "good":
			return testUser, nil
		case "nobody":
			return nil, nil
		}
		return nil, errors.New("expired")
	}))
	got, err := tokens.Authenticate(request("Authorization", "Bearer good"))
	require.NoError(t, err)
	require.Equal(t, testUser, got)
	for _, bad := range []string{"nobody", "old"} {
		got, err = tokens.Authenticate(request("Authorization", "Bearer "+bad))
		require.Error(t, err)
		require.Nil(t, got)
	}
	got, err = tokens.Authenticate(request("", ""))
	require.NoError(t, err)
	require.Nil(t, got)
}

func TestCertificates(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	make := func(name string, ca *x509.Certificate) *x509.Certificate {
		tmpl := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
			IsCA: ca == nil, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
		parent := ca
		if ca == nil {
			parent = tmpl
		}
		der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, key)
		require.NoError(t, err)
		c, err := x509.ParseCertificate(der)
		require.NoError(t, err)
		return c
	}
	ca := make("ca", nil)
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	h := testHost(t, &HostOptions{Auth: Auth{Authenticator: CertificateAuthenticator(func(leaf *x509.Certificate) (*Principal, error) {
		if leaf.Subject.CommonName == "service" {
			return testService, nil
		}
		return nil, nil
	})}})
	ts := httptest.NewUnstartedServer(h)
	ts.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool}
	ts.StartTLS()
	defer ts.Close()
	defer func() { require.NoError(t, h.Close()) }()
	for name, status := range map[string]int{"service": 200, "stranger": 401, "": 401} {
		client := ts.Client()
		tr := client.Transport.(*http.Transport).Clone()
		if name != "" {
			tr.TLSClientConfig.Certificates = []tls.Certificate{{Certificate: [][]byte{make(name, ca).Raw}, PrivateKey: key}}
		}
		res, err := (&http.Client{Transport: tr}).Post(ts.URL+MessagesPath, "application/json", strings.NewReader(`{"type":"Ping"}`))
		require.NoError(t, err)
		require.Equal(t, status, res.StatusCode, name)
		_ = res.Body.Close()
		tr.CloseIdleConnections()
	}
	// An unverified certificate is refused.
	r := httptest.NewRequest("POST", "/", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{make("service", ca)}}
	_, err = h.opts.Auth.Authenticator.Authenticate(r)
	require.Error(t, err)
}

func TestStdio(t *testing.T) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	a, b := NewStreamConn(Join(inR, outW), nil), NewStreamConn(Join(outR, inW), &StreamConnOptions{MaxMessage: 100})
	go func() { _ = a.Send(&Ping{header: header{RequestID: "1"}}) }()
	m, err := b.Receive()
	require.NoError(t, err)
	require.Equal(t, &Ping{header: header{RequestID: "1"}}, m)
	go func() { _ = a.Send(&Ping{header: header{RequestID: strings.Repeat("x", 200)}}) }()
	_, err = b.Receive()
	require.ErrorIs(t, err, reasonMessageTooLarge)
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	_, err = b.Receive()
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, b.Close())
}

// ALT-D03: a stream cut within a message.
func TestTruncated(t *testing.T) {
	near, far := net.Pipe()
	c := NewStreamConn(far, nil)
	go func() {
		_, _ = io.WriteString(near, `{"type":"Ping"}`+"\n"+`{"type":`)
		_ = near.Close()
	}()
	_, err := c.Receive()
	require.NoError(t, err)
	_, err = c.Receive()
	require.ErrorIs(t, err, ErrTruncated)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	_, err = c.Receive()
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, c.Close())
}

// A Runtime that drains, and a Host that shuts down, lose no message (ALT-D24), including messages
// sent concurrently by the peer.
func TestGoodbye(t *testing.T) {
	for _, tr := range transports[1:4] {
		t.Run(tr.name, func(t *testing.T) {
			for range 10 {
				s := start(t, tr.dial, nil, testRuntime("r1", nil))
				sess, err := s.c.CreateSession(t.Context(), nil)
				require.NoError(t, err)
				got := make(chan error, 20)
				for range 10 {
					go func() {
						_, err := sess.Call(t.Context(), "wait", waitIn{20}, nil)
						got <- err
					}()
				}
				for s.h.Stats().Dispatched < 10 {
					time.Sleep(time.Millisecond)
				}
				s.stop[0]()
				for range 10 {
					require.NoError(t, <-got)
				}
				require.NoError(t, <-s.done[0])
				for s.h.Stats().Runtimes > 0 { // the Host sees it a moment later
					time.Sleep(time.Millisecond)
				}

				s.run(t, testRuntime("r2", nil))
				for range 10 {
					go func() {
						_, err := sess.Call(t.Context(), "wait", waitIn{20}, nil)
						got <- err
					}()
				}
				for s.h.Stats().Dispatched < 20 {
					time.Sleep(time.Millisecond)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				require.NoError(t, s.h.Shutdown(ctx))
				cancel()
				for range 10 {
					require.NoError(t, <-got)
				}
				require.NoError(t, s.c.Close())
				s.stop[1]()
			}
		})
	}
}

// A refusal reaches a peer that is still sending.
func TestRefusalArrives(t *testing.T) {
	h := testHost(t, nil)
	dial := tcpTransport(t, h)(testService)
	for range 20 {
		conn, err := dial(t.Context())
		require.NoError(t, err)
		require.NoError(t, conn.Send(&AnnounceRuntime{RuntimeID: "r", ProtocolVersion: "9.0.0"}))
		for range 50 {
			_ = conn.Send(&Ping{})
		}
		m, err := conn.Receive()
		require.NoError(t, err)
		require.ErrorIs(t, m.(*ErrorMessage).Err, reasonUnsupportedVersion)
		_, err = conn.Receive()
		require.Error(t, err)
		require.NoError(t, conn.Close())
	}
}

// However a connection ends, the Host closes it.
func TestServeCloses(t *testing.T) {
	h := testHost(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	peer, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	c, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, peer.(*net.TCPConn).CloseWrite())
	require.NoError(t, h.Serve(t.Context(), NewStreamConn(c, nil), testUser))
	_, err = c.Write([]byte("x"))
	require.ErrorIs(t, err, net.ErrClosed)
	require.NoError(t, peer.Close())
}

// A principal has a bounded number of connections, with or without sessions, and others have theirs (ALT-D35).
func TestConnectionsOfPrincipalAreBounded(t *testing.T) {
	for name, transport := range map[string]func(testing.TB, *Host) func(*Principal) Dialer{"tcp": tcpTransport, "websocket": webSocketTransport} {
		t.Run(name, func(t *testing.T) {
			h := testHost(t, &HostOptions{Limits: Limits{MaxItemsPerPrincipal: 2}, Auth: Auth{Authenticator: keys()}})
			dial := transport(t, h)
			answer := func(id *Principal) (Conn, error) {
				c, err := dial(id)(t.Context())
				if err != nil {
					return nil, err
				}
				t.Cleanup(func() { _ = c.Close() })
				if err := c.Send(&DestroySession{SessionID: "unknown"}); err != nil {
					return nil, err
				}
				_, err = c.Receive()
				return c, err
			}
			first, err := answer(testUser)
			require.NoError(t, err)
			_, err = answer(testUser)
			require.NoError(t, err)
			_, err = answer(testUser)
			require.Error(t, err)
			_, err = answer(testService)
			require.NoError(t, err)
			require.NoError(t, first.Close())
			require.Eventually(t, func() bool {
				_, err := answer(testUser)
				return err == nil
			}, 10*time.Second, time.Millisecond)
		})
	}
}
