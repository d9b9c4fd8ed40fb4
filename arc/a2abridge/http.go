// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abridge

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/fivewire/fivewire/arc/internal/front"
)

// JSONRPCHandler returns a handler for the JSON-RPC binding, for one path.
func (s *Server) JSONRPCHandler() http.Handler {
	next := a2asrv.NewJSONRPCHandler(s, a2asrv.WithTransportKeepAlive(s.opts.Heartbeat))
	return s.checked(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(&resultWriter{w}, r) }))
}

// A resultWriter adds the result that the SDK omits from the response to a deletion.
type resultWriter struct{ http.ResponseWriter }

// Write implements [http.ResponseWriter]; b is a whole response, or a part of a stream.
func (w *resultWriter) Write(b []byte) (int, error) {
	var res map[string]json.RawMessage
	if !bytes.HasPrefix(b, []byte("{")) || bytes.Contains(b, []byte(`"result":`)) || bytes.Contains(b, []byte(`"error":`)) ||
		json.Unmarshal(b, &res) != nil {
		return w.ResponseWriter.Write(b)
	}
	res["result"] = json.RawMessage("{}")
	whole, err := json.Marshal(res)
	if err == nil {
		_, err = w.ResponseWriter.Write(whole)
	}
	return len(b), err
}

// Flush implements [http.Flusher], for streams.
func (w *resultWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// RESTHandler returns a handler for the HTTP+JSON binding, for the paths of that binding: use
// [http.StripPrefix] in front of it for a base path.
func (s *Server) RESTHandler() http.Handler {
	next := a2asrv.NewRESTHandler(s, a2asrv.WithTransportKeepAlive(s.opts.Heartbeat))
	return s.checked(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodDelete {
			next.ServeHTTP(w, r)
			return
		}
		e := &emptyWriter{ResponseWriter: w}
		next.ServeHTTP(e, r)
		if !e.isWritten {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, "{}") // the reader reports a failure
		}
	}))
}

// An emptyWriter holds back the status of a response without a body, which the SDK gives to a deletion.
type emptyWriter struct {
	http.ResponseWriter
	isWritten bool
}

// WriteHeader implements [http.ResponseWriter].
func (w *emptyWriter) WriteHeader(status int) {
	if w.isWritten = status > 299; w.isWritten {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write implements [http.ResponseWriter].
func (w *emptyWriter) Write(b []byte) (int, error) {
	w.isWritten = true
	return w.ResponseWriter.Write(b)
}

// checked returns a handler that checks what the handlers of the SDK do not.
func (s *Server) checked(next http.Handler) http.Handler {
	opts := front.Options{Methods: "GET, POST, DELETE", Headers: a2a.SvcParamVersion + ", " + a2a.SvcParamExtensions, PassRefused: true}
	return front.New(s.engine, opts, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if v := r.URL.Query().Get(a2a.SvcParamVersion); v != "" && r.Header.Get(a2a.SvcParamVersion) == "" {
			r.Header.Set(a2a.SvcParamVersion, v)
		}
		next.ServeHTTP(w, r)
	}))
}
