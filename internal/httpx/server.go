// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package httpx holds the rules for HTTP that all protocols share: the time and size of a body,
// ambiguous headers, origins, URLs, and the report of a failed request.
package httpx

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// singular are the headers of which a proxy may use another value than the server. The first two describe the body.
var singular = [...]string{"Content-Type", "Content-Encoding", "Authorization", "Content-Length", "Origin"}

// CheckRequest refuses, with an [*Error], a body with a content coding or another media type than types (415), and a request in
// which Authorization, Content-Type, Content-Length, Content-Encoding, Origin or one of the given headers occurs
// more than once (400). Without types it does not check the body. It returns the media type.
func CheckRequest(r *http.Request, types []string, headers ...string) (string, error) {
	if err := occurOnce(r, singular[:2]); err != nil {
		return "", err
	}
	kind, ok := MediaType(r.Header.Get("Content-Type"), types...)
	switch {
	case !ok:
		return "", refuse(r, http.StatusUnsupportedMediaType, "body is not "+strings.Join(types, " or "), nil)
	case len(types) > 0 && hasCoding(r.Header):
		return "", refuse(r, http.StatusUnsupportedMediaType, "body has a content coding, such as gzip", nil)
	}
	return kind, cmp.Or(occurOnce(r, singular[2:]), occurOnce(r, headers))
}

func occurOnce(r *http.Request, headers []string) error {
	for _, name := range headers {
		if len(r.Header.Values(name)) > 1 {
			return refuse(r, http.StatusBadRequest, "header "+name+" occurs more than once", nil)
		}
	}
	return nil
}

func hasCoding(h http.Header) bool {
	c := h.Get("Content-Encoding")
	return c != "" && !strings.EqualFold(c, "identity")
}

// MediaType returns the media type of a Content-Type header in lower case, and whether it is one of
// types. Parameters are ignored. Without types every value is right.
func MediaType(value string, types ...string) (string, bool) {
	if len(types) == 0 || slices.Contains(types, value) {
		return value, true
	}
	kind, _, _ := strings.Cut(value, ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	return kind, slices.Contains(types, kind)
}

// Bound limits the time in which a body arrives, also one that net/http discards after the
// response, unless the server has a ReadTimeout. A handler that may respond before it calls Body
// calls Bound first; at the end of the body it is too late. A timeout of 0 or less sets no deadline.
func Bound(w http.ResponseWriter, r *http.Request, timeout time.Duration) {
	if timeout > 0 && r.ContentLength != 0 && readTimeout(r) <= 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(timeout)) // not every writer has one
	}
}

func readTimeout(r *http.Request) time.Duration {
	if srv, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok {
		return srv.ReadTimeout
	}
	return 0
}

// Body reads the body of r. Its [*Error] has the status 413 for a body over the limit, 408 for a
// late one and 400 for an incomplete one; then the connection ends with the response. A negative
// limit, or a timeout of 0 or less, removes the bound.
//
// The timeout never extends the ReadTimeout of the [http.Server]: if this is not longer, it applies
// alone, else both apply. net/http removes the deadline after the body, so the handler may run longer.
func Body(w http.ResponseWriter, r *http.Request, limit int64, timeout time.Duration) ([]byte, error) {
	if r.ContentLength == 0 {
		return nil, nil
	}
	if limit >= 0 && r.ContentLength > limit {
		return nil, abort(w, r, http.StatusRequestEntityTooLarge, ErrTooLarge)
	}
	Bound(w, r, timeout)
	stop := func() bool { return true }
	if timeout > 0 && timeout < readTimeout(r) {
		// The start of the ReadTimeout is unknown, so its deadline may only be replaced by the present.
		rc := http.NewResponseController(w)
		stop = time.AfterFunc(timeout, func() { _ = rc.SetReadDeadline(time.Now()) }).Stop
	}
	data, err := readAll(r.Body, r.ContentLength, limit)
	switch isInTime := stop(); {
	case errors.Is(err, ErrTooLarge):
		return nil, abort(w, r, http.StatusRequestEntityTooLarge, err)
	case !isInTime || errors.Is(err, os.ErrDeadlineExceeded):
		return nil, abort(w, r, http.StatusRequestTimeout, cmp.Or(err, os.ErrDeadlineExceeded))
	case err != nil:
		return nil, abort(w, r, http.StatusBadRequest, err)
	}
	return data, nil
}

// abort ends the connection with the response, because the rest of the body precedes the next
// request. HTTP/2 has streams for this.
func abort(w http.ResponseWriter, r *http.Request, status int, cause error) error {
	if r.ProtoMajor < 2 {
		w.Header().Set("Connection", "close")
	}
	return refuse(r, status, "request body", cause)
}

// LeaveIf ends the connection with the response of a server that shuts down, which is closed: the next request of its
// client must be able to reach another server behind the same address. Over HTTP/2, running requests continue.
func LeaveIf(closed error, w http.ResponseWriter) {
	if closed != nil {
		w.Header().Set("Connection", "close")
	}
}

func refuse(r *http.Request, status int, message string, cause error) *Error {
	return &Error{Method: r.Method, URL: bare(r.URL), Status: status, Message: message, Cause: cause}
}

// maxPart is the memory that the announced length of a body can claim before its bytes arrive, and
// the size of a write with its own deadline.
const maxPart = 64 << 10

// readAll reads r to its end, or reports ErrTooLarge beyond limit bytes. The result fills at least
// half of its buffer.
func readAll(r io.Reader, announced, limit int64) ([]byte, error) {
	if announced < 0 {
		announced = 511
	}
	buf := make([]byte, 0, min(announced, maxPart)+1)
	for {
		end := cap(buf)
		if limit >= 0 {
			end = int(min(int64(end), limit+1)) // one byte more shows that there is more
		}
		n, err := r.Read(buf[len(buf):end])
		buf = buf[:len(buf)+n]
		switch {
		case limit >= 0 && int64(len(buf)) > limit:
			return nil, ErrTooLarge
		case err == io.EOF && cap(buf) > 2*len(buf):
			return bytes.Clone(buf), nil
		case err == io.EOF:
			return buf, nil
		case err != nil:
			return buf, err
		case len(buf) == cap(buf):
			buf = slices.Grow(buf, len(buf))
		}
	}
}

// minReserved is the memory of a body without an announced length before its bytes arrive.
const minReserved = 4 << 10

// ReserveBody reserves memory for the body of r: its announced length, or else what arrives, at most limit bytes unless
// that is negative: [Body] refuses a larger one. If the memory is not free, the error of ReserveBody or of the
// read is a [*budget.Error].
func ReserveBody(r *http.Request, scope *budget.Scope, limit int64) (budget.Hold, error) {
	b := &reservedBody{ReadCloser: r.Body, reserved: r.ContentLength, limit: limit}
	if b.reserved < 0 {
		b.reserved = minReserved
	}
	if limit >= 0 {
		b.reserved = min(b.reserved, limit)
	}
	hold, err := scope.Reserve(budget.Memory, b.reserved)
	if err != nil {
		return budget.Hold{}, err
	}
	b.hold, r.Body = hold, b
	return hold, nil
}

// A reservedBody reserves the memory of the read bytes.
type reservedBody struct {
	io.ReadCloser
	hold                  budget.Hold
	read, reserved, limit int64
}

// Read reads, and fails if the memory is not free.
func (b *reservedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	if b.read > b.reserved && b.reserved != b.limit {
		b.reserved = 2 * b.read // as the buffer of its reader
		if b.limit >= 0 {
			b.reserved = min(b.reserved, b.limit)
		}
		if full := b.hold.Resize(b.reserved); full != nil {
			return n, full
		}
	}
	return n, err
}

// Admits makes the checks of a request that need neither its caller nor its body: the time in which the body
// arrives, the origin of a page, and ambiguous headers. It reports false if it has responded.
func (o *Origins) Admits(w http.ResponseWriter, r *http.Request, timeout time.Duration, headers ...string) bool {
	if r.ContentLength != 0 {
		Bound(w, r, timeout)
	}
	if o.CORS(w, r) {
		return false
	}
	if err := o.Check(r); err != nil {
		http.Error(w, "the origin is not allowed", http.StatusForbidden)
		return false
	}
	if _, err := CheckRequest(r, nil, headers...); err != nil {
		http.Error(w, "no header field may occur twice", http.StatusBadRequest)
		return false
	}
	return true
}

// maxForwardDepth bounds the nesting of a body of Forward.
const maxForwardDepth = 64

// Forward calls next with a body that has been read, or with err, the error of [Body], responds. It refuses a body
// that is not JSON in order. Each 64 KiB of the response have the timeout, and its large parts take their memory from
// output.
func Forward(w http.ResponseWriter, r *http.Request, body []byte, err error, timeout time.Duration, output *budget.Scope, next http.Handler) {
	if err == nil && len(body) > 0 {
		_, err = strictjson.Check(body, strictjson.Options{MaxDepth: maxForwardDepth})
	}
	if err != nil {
		status := http.StatusBadRequest
		if refused, ok := errors.AsType[*Error](err); ok {
			status = refused.Status
		}
		http.Error(w, "the body is not JSON in order, or too large", status)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	next.ServeHTTP(&outputWriter{Bounded(w, timeout), w, output, timeout}, r)
}

// LargeOutput is the size of a response, or a part of one, whose memory counts while it is sent: its reader may be slow.
const LargeOutput = 64 << 10

// An outputWriter takes the memory of the large parts of a response from a scope. Without memory, the timeout is
// that of the whole part: the call has had its effect.
type outputWriter struct {
	http.ResponseWriter // with the timeout for each 64 KiB
	whole               http.ResponseWriter
	scope               *budget.Scope
	timeout             time.Duration
}

// Write writes a part.
func (w *outputWriter) Write(b []byte) (int, error) {
	if len(b) <= LargeOutput {
		return w.ResponseWriter.Write(b)
	}
	hold, err := w.scope.Reserve(budget.Memory, int64(len(b)))
	if err == nil {
		defer hold.Release()
		return w.ResponseWriter.Write(b)
	}
	if w.timeout > 0 {
		_ = http.NewResponseController(w.whole).SetWriteDeadline(time.Now().Add(w.timeout)) // not every writer has one
	}
	return w.whole.Write(b)
}

// Flush implements [http.Flusher].
func (w *outputWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Unwrap returns the writer with the timeout for each 64 KiB.
func (w *outputWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// netBuffer is the size of the buffer of a response in net/http.
const netBuffer = 2 << 10

// Respond writes a complete response. Without contentType, the header has it. Each 64 KiB of the
// response have the timeout, whatever is left of the WriteTimeout of the server; net/http removes
// the deadline afterwards. A timeout of 0 or less sets none. Package sse writes streams of events.
func Respond(w http.ResponseWriter, status int, contentType string, body []byte, timeout time.Duration) error {
	if contentType != "" {
		w.Header().Set("Content-Type", contentType)
	}
	if len(body) >= netBuffer { // net/http adds the length of a shorter body
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	rc := http.NewResponseController(w)
	for i := 0; i == 0 || i < len(body); i += maxPart {
		if timeout > 0 {
			_ = rc.SetWriteDeadline(time.Now().Add(timeout)) // not every writer has one
		}
		if i == 0 {
			w.WriteHeader(status)
		}
		if _, err := w.Write(body[i:min(i+maxPart, len(body))]); err != nil && len(body) > 0 {
			return fmt.Errorf("httpx: write response: %w", err)
		}
	}
	return nil
}

// Bounded returns a writer of responses with the timeout for each part of 64 KiB, and for each Flush. A timeout
// of 0 or less sets none. A connection that w ends with the response is not kept alive.
func Bounded(w http.ResponseWriter, timeout time.Duration) http.ResponseWriter {
	return &boundedWriter{w, http.NewResponseController(w), timeout, w.Header().Get("Connection") == "close"}
}

type boundedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	leaves  bool // the connection ends with the response
}

// WriteHeader sends the header. Its writer may have asked for a connection that is kept alive.
func (w *boundedWriter) WriteHeader(status int) {
	if w.leaves {
		w.Header().Set("Connection", "close")
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *boundedWriter) setDeadline() {
	if w.timeout > 0 {
		_ = w.control.SetWriteDeadline(time.Now().Add(w.timeout)) // not every writer has one
	}
}

// Write writes the parts of b.
func (w *boundedWriter) Write(b []byte) (written int, err error) {
	if w.leaves {
		w.Header().Set("Connection", "close") // no effect after the first part
	}
	for err == nil && written < len(b) {
		w.setDeadline()
		var n int
		n, err = w.ResponseWriter.Write(b[written:min(written+maxPart, len(b))])
		written += n
	}
	return written, err
}

// Flush sends the written parts.
func (w *boundedWriter) Flush() {
	w.setDeadline()
	_ = w.control.Flush() // its error is that of the next Write
}

// Unwrap returns the bounded writer.
func (w *boundedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Origins are the web pages that may use a server. The zero value allows the pages of the server.
type Origins struct {
	AllowedOrigins []string // further origins, compared exactly: "https://app.example"; "*" allows all
	AllowedHosts   []string // further names of a server on a loopback address, with or without a port

	Methods, Headers, Expose string        // CORS lists: Allow-Methods, Allow-Headers, Expose-Headers
	MaxAge                   time.Duration // of a preflight response; zero means 10 minutes, a negative value none
}

// Check refuses the request of a page with another origin (403); requests of other programs have no
// origin. The server's own origin is the host of the request. On a loopback address this host must
// be localhost, a loopback address or in AllowedHosts, because any other name can resolve to it.
func (o *Origins) Check(r *http.Request) error {
	origin := r.Header.Get("Origin")
	if len(r.Header["Origin"]) == 0 || o.allows(origin) {
		return nil
	}
	scheme, host, _ := strings.Cut(origin, "://")
	name, isOwn := netguard.RequestHost(r)
	isOwn = isOwn || slices.Contains(o.AllowedHosts, name) || slices.Contains(o.AllowedHosts, r.Host)
	if scheme != "http" && scheme != "https" || !strings.EqualFold(host, r.Host) || !isOwn {
		return refuse(r, http.StatusForbidden, "origin not allowed", nil)
	}
	return nil
}

func (o *Origins) allows(origin string) bool {
	return slices.Contains(o.AllowedOrigins, origin) || slices.Contains(o.AllowedOrigins, "*")
}

// CORS sets the CORS headers for a page of AllowedOrigins, never with credentials, and reports
// whether it has responded, as it does to a preflight request. Other pages get no headers.
func (o *Origins) CORS(w http.ResponseWriter, r *http.Request) bool {
	h, origin := w.Header(), r.Header.Get("Origin")
	if slices.Contains(o.AllowedOrigins, "*") {
		origin = "*"
	} else if len(o.AllowedOrigins) > 0 {
		h.Add("Vary", "Origin")
	}
	if !o.allows(origin) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", o.Expose)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", o.Methods)
	h.Set("Access-Control-Allow-Headers", o.Headers)
	h.Set("Access-Control-Max-Age", strconv.Itoa(int(cmp.Or(o.MaxAge, 10*time.Minute).Seconds())))
	w.WriteHeader(http.StatusNoContent)
	return true
}
