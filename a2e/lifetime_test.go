// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/internal/plugin"
	"github.com/fivewire/fivewire/internal/testkit"
	"github.com/fivewire/fivewire/store"
)

const day = 24 * time.Hour

// newLastingProcess returns a process whose sessions do not become idle, and whose lease is long.
func newLastingProcess(t *testing.T, db store.Store, log *slog.Logger) *durableProcess {
	h := a2etest.NewHost(t, &a2e.HostOptions{Logger: log, Persistence: a2e.Persistence{Store: db, InstanceID: "one", LeaseTTL: day},
		Timing: a2e.Timing{SessionIdleTimeout: -1}}, notesPlugin(nil))
	p := &durableProcess{host: h, handler: a2etest.Must(a2e.NewHTTPHandler(h, &a2e.HTTPHandlerOptions{AllowedHosts: []string{"a2e.test"}}))}
	synctest.Wait()
	return p
}

func writeNote(t *testing.T, p *durableProcess, secret, text string) (answer string) {
	t.Helper()
	post(t, p, secret, request("notes/write/req", a2e.NewID(), `"text":"`+text+`"`))
	time.Sleep(time.Second)
	_, answer = serveDurable(p, "GET", "/stream", secret, "")
	return answer
}

// sessionKeys returns the keys that the store has of durable sessions.
func sessionKeys(t *testing.T, db store.Store) (keys []string) {
	for e, err := range db.List(t.Context(), "a2e/") {
		require.NoError(t, err)
		if !strings.HasPrefix(e.Key, "a2e/lease/") && !strings.HasPrefix(e.Key, "a2e/owner/") {
			keys = append(keys, e.Key)
		}
	}
	return keys
}

// The entries of a session in the store last as long as the session, and expire with that of a host that fails and is
// not replaced (A2E-D67).
func TestEntriesOfSessionHaveItsLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		p := newLastingProcess(t, db, nil)
		secret := openDurable(t, p, `"notes"`)
		writeNote(t, p, secret, "first")
		before := sessionKeys(t, db)
		time.Sleep(70 * day)
		require.Equal(t, before, sessionKeys(t, db))
		require.NoError(t, p.host.Close())
		p = newLastingProcess(t, db, nil)
		time.Sleep(70 * day) // the next owner does not use the plugin
		require.Contains(t, writeNote(t, p, secret, "second"), `"before":"first"`)
		require.NoError(t, p.host.Close())
		require.True(t, slices.ContainsFunc(sessionKeys(t, db), func(key string) bool { return strings.HasPrefix(key, "a2e/snapshot/") }))
		time.Sleep(31 * day)
		p = newLastingProcess(t, db, nil)
		time.Sleep(day) // it removes the index entry of the expired session
		require.Empty(t, sessionKeys(t, db))
		require.NoError(t, p.host.Close())
	})
}

// The end of a session removes the states of its plugins, also of those that only an earlier owner has used.
func TestEndOfSessionRemovesStatesOfEarlierOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		p := newLastingProcess(t, db, nil)
		secret := openDurable(t, p, `"notes"`)
		writeNote(t, p, secret, "first")
		require.NoError(t, p.host.Close())
		p = newLastingProcess(t, db, nil)
		status, _ := serveDurable(p, "DELETE", "/session", secret, "")
		require.Equal(t, 200, status)
		time.Sleep(time.Minute)
		for _, key := range sessionKeys(t, db) {
			require.NotContains(t, key, "a2e/snapshot/")
		}
		require.NoError(t, p.host.Close())
	})
}

// An owner of a session ends it at once if the store shows a later owner, and logs that once. Each request is answered
// by one of them.
func TestMovedSessionEndsAtItsEarlierOwner(t *testing.T) {
	for _, isUsed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			db, logged := store.NewMemory(), &testkit.Log{}
			p := newLastingProcess(t, db, logged.Logger())
			secret := openDurable(t, p, `"notes"`)
			time.Sleep(time.Second)
			if isUsed {
				writeNote(t, p, secret, "first")
			}
			sum := sha256.Sum256([]byte(secret))
			_, err := plugin.Place{KV: db, Key: "session/" + hex.EncodeToString(sum[:]), IsSession: true, Term: 1}.Load(t.Context(), "notes")
			require.Equal(t, isUsed, err == nil)
			_, answers := serveDurable(p, "GET", "/stream", secret, "")
			for i := range 3 {
				post(t, p, secret, request("notes/write/req", fmt.Sprintf("c%d", i), `"plan_id":"p","text":"x"`)) // one after the other
			}
			time.Sleep(time.Minute)
			_, more := serveDurable(p, "GET", "/stream", secret, "")
			for i := range 3 {
				require.Equal(t, 1, strings.Count(answers+more, fmt.Sprintf(`"req_id":"c%d"`, i)), answers+more)
			}
			require.Contains(t, writeNote(t, p, secret, "last"), `"before":`)
			require.Equal(t, 1, strings.Count(logged.String(), "a2e: session lost"), logged.String())
			require.NotContains(t, logged.String(), "a2e: snapshot")
			require.NoError(t, p.host.Close())
		})
	}
}

// A durable session keeps of the names in its handshake those that were agreed, once.
func TestStoreKeepsAgreedNamesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		p := newLastingProcess(t, db, nil)
		secret := openDurable(t, p, `"notes"`)
		many := strings.Repeat(`"streaming","other","notes",`, 10_000)
		post(t, p, secret, `{"a2e":"1.0","type":"handshake/req","id":"h2","ts":1,"agent_id":"t","agent_caps":[`+many+`"cancel","resume"]}`)
		time.Sleep(time.Second)
		for e, err := range db.List(t.Context(), "a2e/session/") {
			require.NoError(t, err)
			require.Less(t, len(e.Value), 1000)
		}
		require.NoError(t, p.host.Close())
		p = newLastingProcess(t, db, nil)
		writeNote(t, p, secret, "first")
		for _, s := range p.host.Sessions() {
			require.True(t, s.HasCapability("cancel") && s.HasCapability("streaming") && s.HasCapability("notes"))
		}
		require.NoError(t, p.host.Close())
	})
}

// A scarceListener has too many open files for each second connection.
type scarceListener struct {
	net.Listener
	n int
}

func (l *scarceListener) Accept() (net.Conn, error) {
	if l.n++; l.n%2 == 0 {
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

// A connection that cannot be accepted for the moment ends no session.
func TestListenerContinuesAfterTemporaryErrors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h := a2etest.NewHost(t, nil)
	listen(t.Context(), t, h, &scarceListener{Listener: l})
	var clients []*a2e.Client
	for range 3 {
		conn, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		c := a2etest.Must(a2e.NewClient(conn, nil))
		clients = append(clients, c)
		_, err = c.Connect(t.Context())
		require.NoError(t, err)
	}
	for _, c := range clients {
		_, _, err = c.Ping(t.Context())
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
}
