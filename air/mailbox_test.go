// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/store"
)

// Under concurrency each envelope is stored once however often it is pushed, is returned byte for
// byte, and is removed by its acknowledgement (AIR-094, AIR-096, AIR-D61, AIR-D62).
func TestMailboxConcurrently(t *testing.T) {
	for _, kind := range []string{"private", "alone", "shared", "shared by two"} {
		t.Run(kind, func(t *testing.T) { testMailboxConcurrently(t, kind) })
	}
}

func testMailboxConcurrently(t *testing.T, kind string) {
	opts := relay.ServerOptions{PageSize: 7, Limits: relay.Limits{RateLimit: -1, AddressRateLimit: -1}, Persistence: relay.Persistence{SingleInstance: kind == "alone"}}
	if kind != "private" {
		opts.Persistence.Store = store.NewMemory()
	}
	w := newWorld(t, &opts)
	relays := []http.Handler{w.relay}
	if kind == "shared by two" {
		relays = append(relays, newWorld(t, &opts).relay)
	}
	turn := func(i int) http.Handler { return relays[i%len(relays)] }
	alice, bob := w.join(t, 1), w.join(t, 2)
	base := string(signedOffer(t, alice, bob.DID(), nil))
	id := idOf(t, []byte(base))
	const senders, each = 4, 60
	box := "/inbox/" + bob.AIRID()
	mail := make(map[string]string) // by id
	for i := range senders * each {
		n := strconv.Itoa(100000 + i)
		fresh := id[:len(id)-6] + n
		mail[fresh] = strings.Replace(base, id, fresh, 1) // the relay does not verify (AIR-125)
	}
	var lists [senders][]string
	i := 0
	for id := range mail {
		lists[i%senders] = append(lists[i%senders], id)
		i++
	}
	var mu sync.Mutex
	acked := make(map[string]int)
	var pushers, readers sync.WaitGroup
	for _, list := range lists {
		pushers.Go(func() {
			for i, id := range list {
				push(t, turn(i), bob.AIRID(), []byte(mail[id]))
				push(t, turn(i/2), bob.DID(), []byte(mail[list[i/2]])) // a repeated push
			}
		})
	}
	done := make(chan struct{})
	for range 3 {
		readers.Go(func() {
			last := false
			for i := 0; ; i++ {
				page := pull(t, turn(i), box+"/pull")
				var ids []string
				for _, e := range page.Envelopes {
					id := idOf(t, e)
					require.Equal(t, mail[id], string(e))
					ids = append(ids, id)
				}
				if len(ids) > 0 {
					status, body, _ := do(t, turn(i/2), "POST", box+"/ack", ackBody(ids...))
					require.Equal(t, 200, status)
					var a struct {
						Acked int `json:"acked_count"`
					}
					require.NoError(t, json.Unmarshal([]byte(body), &a))
					mu.Lock()
					acked["all"] += a.Acked
					for _, id := range ids {
						acked[id]++
					}
					mu.Unlock()
					continue
				}
				if last {
					return
				}
				select {
				case <-done:
					last = true // one more look
				default:
				}
			}
		})
	}
	pushers.Wait()
	close(done)
	readers.Wait()
	if len(relays) == 1 {
		require.Equal(t, len(mail), acked["all"], "each is acknowledged once")
	} else { // two at the same moment may both count
		require.GreaterOrEqual(t, acked["all"], len(mail))
	}
	for id := range mail {
		require.NotZero(t, acked[id])
	}
	for _, data := range mail {
		push(t, w.relay, bob.AIRID(), []byte(data))
	}
	require.Empty(t, pull(t, w.relay, box+"/pull").Envelopes, "what was acknowledged is still known")
}
