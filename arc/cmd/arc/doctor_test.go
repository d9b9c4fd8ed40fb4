// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/command"
)

// examine runs the doctor and returns its report.
func examine(t *testing.T, h http.Handler, args ...string) (status int, r *report) {
	t.Helper()
	srv := httptest.NewServer(h)
	defer srv.Close()
	status, stdout, stderr := do(t, "", append(append([]string{"doctor", "-o", "json"}, args...), srv.URL+"/arc")...)
	require.NotEqual(t, command.NotDone, status, stderr)
	require.NoError(t, json.Unmarshal([]byte(stdout), &r), stdout)
	return status, r
}

func ids(r *report) (list []string) {
	for _, f := range r.Findings {
		list = append(list, f.Kind+" "+f.ID)
	}
	return list
}

// patient returns a server with an agent.
func patient(t *testing.T, opts *arc.ServerOptions) *arc.Server {
	t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	s, err := arc.NewServer(opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, _ *arc.TaskRun) error {
		<-ctx.Done()
		return ctx.Err()
	}))
	s.HandleChats("a-01", arc.ChatReplyFunc(func(context.Context, *arc.ChatTurn) (*arc.Message, error) { return arc.AgentText("hello"), nil }))
	return s
}

var open = arc.Auth{AllowAnonymous: true}

func TestDoctorFindsOptions(t *testing.T) {
	var mu sync.Mutex
	var handled []string
	s := patient(t, &arc.ServerOptions{Auth: open, Audit: func(_ context.Context, r *arc.AuditRecord) {
		mu.Lock()
		defer mu.Unlock()
		if r.Code == "" {
			handled = append(handled, r.Operation)
		}
	}})
	status, r := examine(t, s)
	require.Equal(t, command.Done, status)
	require.Empty(t, r.Findings)
	require.Equal(t, []string{"a-01"}, r.Agents)
	require.Empty(t, handled)

	status, r = examine(t, s, "-agent", "a-01")
	require.Equal(t, command.Done, status, r)
	require.Empty(t, r.Findings)
	count := map[string]int{}
	for _, method := range handled {
		count[method]++
	}
	require.Equal(t, 2, count[arc.MethodChatStart], "a chat and a stream")
	require.Equal(t, 2, count[arc.MethodChatEnd])
	require.Equal(t, 2, count[arc.MethodTaskCreate])
	require.Equal(t, 2, count[arc.MethodTaskCancel])

	s = patient(t, &arc.ServerOptions{Auth: open, Persistence: arc.Persistence{EnableResume: true, ResultTTL: time.Minute}})
	status, r = examine(t, s, "-agent", "a-01")
	require.Equal(t, command.Done, status)
	require.ElementsMatch(t, []string{"option ARC-D48", "option ARC-D73"}, ids(r))
}

// An edit changes the responses of a server.
type edit func(header http.Header, status int, body string) (int, string)

func (e edit) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		status, body := e(rec.Header(), rec.Code, rec.Body.String())
		for name, values := range rec.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	})
}

// replaced is an edit of texts.
func replaced(pairs ...string) func(http.Handler) http.Handler {
	return edit(func(_ http.Header, status int, body string) (int, string) {
		return status, strings.NewReplacer(pairs...).Replace(body)
	}).wrap
}

// withHeader changes the header of a request, unless it is a GET.
func withHeader(f func(http.Header)) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f(r.Header)
			h.ServeHTTP(w, r)
		})
	}
}

func statusOf(from, to int) func(http.Handler) http.Handler {
	return edit(func(_ http.Header, status int, body string) (int, string) {
		if status == from && (from != 200 || strings.Contains(body, `"error":{`)) {
			status = to
		}
		return status, body
	}).wrap
}

func TestDoctorFindsDeviations(t *testing.T) {
	for _, tt := range []struct {
		name, id string
		wrap     func(http.Handler) http.Handler
	}{
		{"media type", "ARC-D10", withHeader(func(h http.Header) {
			if h.Get("Content-Type") == "text/plain" {
				h.Set("Content-Type", arc.MediaType)
			}
		})},
		{"verb", "ARC-D10", statusOf(405, 404)},
		{"doubled header", "ARC-D81", withHeader(func(h http.Header) { h.Set("Content-Type", h.Get("Content-Type")) })},
		{"origins", "ARC-D17", edit(func(h http.Header, status int, body string) (int, string) {
			h.Set("Access-Control-Allow-Origin", "*")
			return status, body
		}).wrap},
		{"clock", "ARC-D43", edit(func(h http.Header, status int, body string) (int, string) {
			h.Set("Date", "Mon, 01 Jan 2024 00:00:00 GMT")
			return status, body
		}).wrap},
		{"response type", "ARC-D11", edit(func(h http.Header, status int, body string) (int, string) {
			h.Set("Content-Type", strings.Replace(h.Get("Content-Type"), "arc+json", "json", 1))
			return status, body
		}).wrap},
		{"JSON", "ARC-D01", replaced("-32700", "-32600")},
		{"envelope errors", "ARC-D06", replaced("-45001", "-32600", "-45002", "-32600")},
		{"statuses", "ARC-D12", statusOf(404, 200)},
		{"statuses of agents", "ARC-D12", statusOf(200, 400)},
		{"no ARC", "ARC-055", statusBody(400, "Bad Request")},
		{"agents", "ARC-D55", replaced(`"details":{"agentId":"doctor-absent-00"}`, `"details":["a-01"]`)},
		{"no details", "ARC-D55", replaced(`,"details":{"agentId":"doctor-absent-00"}`, ``)},
		{"large ids", "ARC-D02", replaced("123456789012345678901234567890", "123456789012345680000000000000")},
		{"trace", "ARC-D09", replaced(`,"traceId":"doctor"`, ``)},
		{"no discovery", "ARC-D67", func(h http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/arc", h)
			return mux
		}},
		{"redirect", "ARC-D10", func(h http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/", h)
			mux.Handle("/arc", http.RedirectHandler("/arc/", http.StatusTemporaryRedirect))
			return mux
		}},
		{"acknowledgment", "ARC-D31", chatMessages(`{"success":true}`)},
		{"no zone", "ARC-D63", edit(func(_ http.Header, status int, body string) (int, string) {
			return status, strings.ReplaceAll(body, `Z"`, `"`)
		}).wrap},
		{"no end", "ARC-D27", edit(func(_ http.Header, status int, body string) (int, string) {
			body, _, _ = strings.Cut(body, "event: done")
			return status, body
		}).wrap},
		{"names of events", "ARC-D20", replaced("event: stream", "event: chat")},
		{"chunks", "ARC-D28", replaced(`"message":{"role":"agent","parts":[{"type":"TextPart","content":"hello"}]}`, `"message":"hello"`)},
		{"status of the end", "ARC-D22", replaced(`"status":"ACTIVE","done"`, `"status":"ERROR","done"`)},
		{"bare error", "ARC-D22", replaced("event: done", "event: error")},
		{"JSON instead of a stream", "ARC-D24", edit(func(h http.Header, status int, body string) (int, string) {
			if h.Get("Content-Type") == "text/event-stream" {
				h.Set("Content-Type", arc.MediaType)
				body = `{"arc":"1.0","id":1,"responseAgent":"a-01","targetAgent":"x","result":{}}`
			}
			return status, body
		}).wrap},
		{"pages", "ARC-D79", replaced(`"messageCount":`, `"x":`)},
		{"empty list", "ARC-D37", replaced(`"artifacts":[]`, `"artifacts":[],"messages":[]`)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, r := examine(t, tt.wrap(patient(t, &arc.ServerOptions{Auth: open})), "-agent", "a-01")
			require.Equal(t, command.Failed, status)
			require.NotEmpty(t, r.Findings)
			for _, f := range r.Findings {
				require.Equal(t, tt.id, f.ID, f.Text)
			}
		})
	}
}

// statusBody replaces the body of the responses with a status.
func statusBody(of int, text string) func(http.Handler) http.Handler {
	return edit(func(_ http.Header, status int, body string) (int, string) {
		if status == of {
			body = text
		}
		return status, body
	}).wrap
}

// chatMessages replaces the result of chat.message, which has the time of its update.
func chatMessages(result string) func(http.Handler) http.Handler {
	return edit(func(_ http.Header, status int, body string) (int, string) {
		if head, _, ok := strings.Cut(body, `"result":`); ok && strings.Contains(body, `"message":{"role":"agent"`) && strings.Contains(body, `"updatedAt"`) {
			body = head + `"result":` + result + `}`
		}
		return status, body
	}).wrap
}

// The task of a server that refuses its request the second time is ended, too.
func TestDoctorEndsTaskOfRefusedRepetition(t *testing.T) {
	s := patient(t, &arc.ServerOptions{Auth: open})
	tasks := make(chan error, 1)
	s.HandleTasks("once-01", arc.TaskHandlerFunc(func(ctx context.Context, _ *arc.TaskRun) error {
		<-ctx.Done()
		tasks <- context.Cause(ctx)
		return nil
	}))
	creations := 0
	status, _ := examine(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		if strings.Contains(string(body), arc.MethodTaskCreate) {
			if creations++; creations == 2 {
				body = []byte("{")
			}
		}
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(string(body))), int64(len(body))
		s.ServeHTTP(w, r)
	}), "-agent", "once-01")
	require.Equal(t, command.Failed, status)
	require.Equal(t, 2, creations)
	require.ErrorIs(t, <-tasks, arc.ErrTaskAlreadyCanceled)
}

// A token that is wrong is refused, but none is not.
func TestDoctorFindsOpenServer(t *testing.T) {
	token := arc.BearerAuthenticator(arc.TokenVerifierFunc(func(_ context.Context, token string) (*arc.Principal, error) {
		if token != "good" && token != "" {
			return nil, arc.ErrTokenInvalid
		}
		return &arc.Principal{ID: "me", Scopes: []string{arc.ScopeTaskController, arc.ScopeChatController, arc.ScopeAgentCaller}}, nil
	}))
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("good\n"), 0o600))
	s := patient(t, &arc.ServerOptions{Auth: arc.Auth{Authenticator: token}})
	status, r := examine(t, s, "-token-file", file)
	require.Equal(t, command.Done, status)
	require.Empty(t, r.Findings)

	status, r = examine(t, withHeader(func(h http.Header) {
		if h.Get("Authorization") == "" {
			h.Set("Authorization", "Bearer good")
		}
	})(s), "-token-file", file)
	require.Equal(t, command.Failed, status)
	require.Equal(t, []string{"deviation ARC-D54"}, ids(r))

	srv := httptest.NewServer(s)
	defer srv.Close()
	status, _, stderr := do(t, "", "doctor", srv.URL+"/arc")
	require.Equal(t, command.NotDone, status)
	require.Contains(t, stderr, "requires a token")
}
