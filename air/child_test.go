// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/store"
)

// A journal is the durable store of these tests: each change is in a file before the method
// returns. It does not store expiry.
type journal struct {
	*store.Memory
	mu sync.Mutex
	f  *os.File
}

func openJournal(path string) (*journal, error) {
	j := &journal{Memory: store.NewMemory()}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	whole := 0
	for rest := data; ; {
		parts, n := readEntry(rest)
		if n == 0 {
			break // the end, or an entry that the kill cut off
		}
		if err := j.replay(parts); err != nil {
			return nil, err
		}
		whole += n
		rest = rest[n:]
	}
	if j.f, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	if err := j.f.Truncate(int64(whole)); err != nil {
		return nil, err
	}
	_, err = j.f.Seek(int64(whole), io.SeekStart)
	return j, err
}

func readEntry(b []byte) (parts [][]byte, n int) {
	if len(b) < 8 {
		return nil, 0
	}
	size := int(binary.BigEndian.Uint32(b))
	if len(b) < 8+size || crc32.ChecksumIEEE(b[8:8+size]) != binary.BigEndian.Uint32(b[4:]) {
		return nil, 0
	}
	for p := b[8 : 8+size]; len(p) > 0; {
		k := int(binary.BigEndian.Uint32(p))
		parts = append(parts, p[4:4+k])
		p = p[4+k:]
	}
	return parts, 8 + size
}

func (j *journal) write(parts ...[]byte) error {
	b := make([]byte, 8)
	for _, p := range parts {
		b = binary.BigEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-8))
	binary.BigEndian.PutUint32(b[4:], crc32.ChecksumIEEE(b[8:]))
	_, err := j.f.Write(b)
	return err
}

func (j *journal) replay(p [][]byte) error {
	ctx := context.Background()
	var err error
	switch key := string(p[1]); string(p[0]) {
	case "set":
		if err = j.Memory.Delete(ctx, key, 0); err == nil {
			_, err = j.Memory.Create(ctx, key, p[2], 0)
		}
	case "delete":
		err = j.Memory.Delete(ctx, key, 0)
	case "append":
		_, err = j.Memory.Append(ctx, key, string(p[2]), p[3], 24*time.Hour)
	case "ack":
		err = j.Memory.Ack(ctx, key, binary.BigEndian.Uint64(p[2]))
	}
	return err
}

func (j *journal) Create(ctx context.Context, key string, value []byte, _ time.Duration) (store.Revision, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	rev, err := j.Memory.Create(ctx, key, value, 0)
	if err == nil {
		err = j.write([]byte("set"), []byte(key), value)
	}
	return rev, err
}

func (j *journal) Update(ctx context.Context, key string, value []byte, rev store.Revision, _ time.Duration) (store.Revision, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	rev, err := j.Memory.Update(ctx, key, value, rev, 0)
	if err == nil {
		err = j.write([]byte("set"), []byte(key), value)
	}
	return rev, err
}

func (j *journal) Delete(ctx context.Context, key string, rev store.Revision) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	err := j.Memory.Delete(ctx, key, rev)
	if err == nil {
		err = j.write([]byte("delete"), []byte(key))
	}
	return err
}

func (j *journal) Append(ctx context.Context, stream, id string, value []byte, _ time.Duration) (uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	seq, err := j.Memory.Append(ctx, stream, id, value, 24*time.Hour)
	if err == nil {
		err = j.write([]byte("append"), []byte(stream), []byte(id), value)
	}
	return seq, err
}

func (j *journal) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	err := j.Memory.Ack(ctx, stream, seqs...)
	for _, seq := range seqs {
		if err == nil {
			err = j.write([]byte("ack"), []byte(stream), binary.BigEndian.AppendUint64(nil, seq))
		}
	}
	return err
}

// childMain runs the child process of a test. It reports whether this process is one.
func childMain() bool {
	role := os.Getenv("AIR_TEST_CHILD")
	if role == "" {
		return false
	}
	var err error
	if role == "relay" {
		err = relayChild()
	} else {
		err = inboxChild()
	}
	fmt.Fprintln(os.Stderr, role, "ended:", err)
	os.Exit(1)
	return true
}

func relayChild() error {
	j, err := openJournal(os.Getenv("AIR_TEST_STORE"))
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	srv, err := relay.NewServer(&relay.ServerOptions{PageSize: 7, AnyRecipient: true, Auth: relay.Auth{AllowAnonymous: true}, Limits: relay.Limits{RateLimit: -1, AddressRateLimit: -1}, Persistence: relay.Persistence{Store: j, SingleInstance: os.Getenv("AIR_TEST_ALONE") != ""}})
	if err != nil {
		return err
	}
	return http.Serve(l, srv)
}

// actStream is where the inbox of the crash test acts. The id of the envelope is
// what makes an act that is repeated after a kill the same act.
const actStream = "acts"

func inboxChild() error {
	j, err := openJournal(os.Getenv("AIR_TEST_STORE"))
	if err != nil {
		return err
	}
	id, err := air.LoadIdentity(os.Getenv("AIR_TEST_IDENTITY"))
	if err != nil {
		return err
	}
	resolver, err := air.NewResolver(&air.ResolverOptions{RegistryURL: os.Getenv("AIR_TEST_REGISTRY"), AllowLoopback: true})
	if err != nil {
		return err
	}
	in, err := air.NewInbox(id, air.HandlerFunc(func(ctx context.Context, d *air.Delivery) error {
		if _, err := j.Append(ctx, "calls", "", fmt.Appendf(nil, "%s %t", d.Envelope.ID, d.Redelivered), 0); err != nil {
			return err
		}
		_, err := j.Append(ctx, actStream, d.Envelope.ID, []byte(d.Envelope.ID), 0)
		if errors.Is(err, store.ErrDuplicate) && d.Redelivered {
			return nil // it was done before the kill
		}
		return err
	}), &air.InboxOptions{Resolver: resolver, Persistence: air.Persistence{Store: j, SingleInstance: true}, Timing: air.Timing{HandlerTimeout: 100 * time.Millisecond}})
	if err != nil {
		return err
	}
	p, err := air.NewPoller(in, os.Getenv("AIR_TEST_ENDPOINT"), &air.PollerOptions{AllowLoopback: true, PollInterval: 5 * time.Millisecond})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return p.Run(context.Background())
}

// A process of the test, and its first line of output.
func startChild(t *testing.T, role, file string, env ...string) (*exec.Cmd, string) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(append(os.Environ(), "AIR_TEST_CHILD="+role, "AIR_TEST_STORE="+file), env...)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = cmd.Wait() // what it said is more useful
		t.Fatalf("the %s did not start: %v\n%s", role, err, stderr.String())
	}
	return cmd, line[:len(line)-1]
}

func killChild(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	require.NoError(t, cmd.Process.Kill()) // kill -9
	require.Error(t, cmd.Wait())
}

// The relay keeps every push that it confirmed, and the inbox acts once on each
// envelope, while both are killed at random moments (AIR-096, AIR-116).
func TestKilledAtRandom(t *testing.T) {
	if testing.Short() {
		t.Skip("starts 80 processes")
	}
	t.Run("shared", func(t *testing.T) { killAtRandom(t) })
	t.Run("alone", func(t *testing.T) { killAtRandom(t, "AIR_TEST_ALONE=yes") })
}

func killAtRandom(t *testing.T, relayEnv ...string) {
	dir := t.TempDir()
	registry := &airtest.Registry{}
	reg := httptest.NewServer(registry)
	defer reg.Close()
	var current atomic.Value // where the relay is now
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, err := http.NewRequestWithContext(r.Context(), r.Method, "http://"+current.Load().(string)+r.URL.RequestURI(), r.Body)
		if err == nil {
			var res *http.Response
			if res, err = http.DefaultTransport.RoundTrip(req); err == nil {
				defer res.Body.Close()
				w.WriteHeader(res.StatusCode)
				_, err = io.Copy(w, res.Body)
			}
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}))
	defer front.Close()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()

	alice, err := air.GenerateIdentity(airtest.DID(airIDOf(1)))
	require.NoError(t, err)
	bob, err := air.GenerateIdentity(airtest.DID(airIDOf(2)))
	require.NoError(t, err)
	registry.Register(alice, "")
	registry.Register(bob, front.URL+"/inbox/"+bob.AIRID())
	identity := filepath.Join(dir, "bob.json")
	require.NoError(t, air.SaveIdentity(identity, bob))
	relayFile, inboxFile := filepath.Join(dir, "relay"), filepath.Join(dir, "inbox")
	startRelay := func() *exec.Cmd {
		cmd, addr := startChild(t, "relay", relayFile, relayEnv...)
		current.Store(addr)
		return cmd
	}
	startInbox := func() *exec.Cmd {
		cmd, _ := startChild(t, "inbox", inboxFile, "AIR_TEST_REGISTRY="+reg.URL, "AIR_TEST_IDENTITY="+identity,
			"AIR_TEST_ENDPOINT="+front.URL+"/inbox/"+bob.AIRID())
		return cmd
	}
	relay, inbox := startRelay(), startInbox()

	confirmed := map[string]bool{}
	stop, pushed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(pushed)
		for {
			select {
			case <-stop:
				return
			default:
			}
			data := signedOffer(t, alice, bob.DID(), nil)
			res, err := http.Post(front.URL+"/inbox/"+bob.AIRID(), "application/json", bytes.NewReader(data))
			if err != nil {
				continue
			}
			res.Body.Close()
			if res.StatusCode == http.StatusAccepted {
				confirmed[idOf(t, data)] = true
			}
			time.Sleep(time.Millisecond)
		}
	}()
	for round := range 20 {
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
		if round%3 != 1 {
			killChild(t, relay)
			relay = startRelay()
		}
		if round%3 != 0 {
			killChild(t, inbox)
			inbox = startInbox()
		}
	}
	close(stop)
	<-pushed
	require.NotEmpty(t, confirmed)
	empty := func() bool {
		res, err := http.Get(front.URL + "/pull/" + bob.AIRID())
		if err != nil {
			return false
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		return err == nil && bytes.Contains(body, []byte(`"messages":[]`))
	}
	require.Eventually(t, empty, 30*time.Second, 100*time.Millisecond)
	killChild(t, inbox)
	killChild(t, relay)

	j, err := openJournal(inboxFile)
	require.NoError(t, err)
	defer j.f.Close()
	acts, calls := map[string]int{}, map[string]int{}
	list, err := j.Read(t.Context(), actStream, 0, 1e6)
	require.NoError(t, err)
	for _, a := range list {
		acts[string(a.Value)]++
	}
	list, err = j.Read(t.Context(), "calls", 0, 1e6)
	require.NoError(t, err)
	for _, c := range list {
		calls[string(c.Value)]++
	}
	for id := range confirmed {
		require.Equal(t, 1, acts[id], "envelope %s was lost or handled twice", id)
	}
	for id, n := range acts {
		require.Equal(t, 1, n, id)
		require.LessOrEqual(t, calls[id+" false"], 1, "envelope %s was handed out twice as new", id)
	}
	t.Logf("%d envelopes confirmed, %d acted on, %d calls of the handler", len(confirmed), len(acts), len(list))
}
