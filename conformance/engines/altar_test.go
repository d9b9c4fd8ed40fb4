// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/altartest"
	"github.com/fivewire/fivewire/store"
)

const contracts = `{"contracts":[{"name":"math/add","parameters":[
	{"name":"a","type":"integer","required":true},{"name":"b","type":"integer","required":true}]}]}`

type sum struct {
	A int64 `json:"a"`
	B int64 `json:"b"`
}

// A station is a Host with a Runtime, and a client of alice's.
type station struct {
	host   *altar.Host
	client *altar.Client
	close  func()
}

func newStation(t *testing.T, s store.Store, id string, runs *atomic.Int64) *station {
	m, err := altar.DecodeManifest([]byte(contracts))
	require.NoError(t, err)
	host, err := altar.NewHost(m, &altar.HostOptions{ID: id, Auth: altar.Auth{Authorizer: altar.AuthorizerFunc(altar.AllowAll), AllowAnonymous: true}, Persistence: altar.Persistence{Store: store.Sub(s, "altar/")}})
	require.NoError(t, err)
	rt, err := altar.NewRuntime("calc-"+id, nil)
	require.NoError(t, err)
	altar.AddTool(rt, "math/add", func(_ context.Context, in sum) (int64, error) {
		runs.Add(1)
		return in.A + in.B, nil
	})
	ctx, stop := context.WithCancel(context.Background())
	conn, err := host.Dial(&altar.Principal{ID: "calculator"})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- rt.Run(ctx, conn) }()
	altartest.WaitTools(t, host, 1)
	client, err := altar.NewClient(func(context.Context) (altar.Conn, error) {
		return host.Dial(&altar.Principal{ID: "alice"})
	}, nil)
	require.NoError(t, err)
	st := &station{host: host, client: client}
	var once sync.Once
	st.close = func() {
		once.Do(func() {
			_ = st.client.Close()
			stop()
			_ = host.Close()
			<-done
		})
	}
	t.Cleanup(st.close)
	return st
}

// TestALTARHosts: a session created at one Host is known at the other, and a call sent to both runs
// once, with one outcome; after a restart too.
func TestALTARHosts(t *testing.T) {
	each(t, func(t *testing.T, p *place) {
		ctx := t.Context()
		var runs atomic.Int64
		a := newStation(t, p.open(t), "host-a", &runs)
		b := newStation(t, p.open(t), "host-b", &runs)
		session, err := a.client.CreateSession(ctx, &altar.CreateSessionParams{ID: "s", TTL: time.Hour})
		require.NoError(t, err)
		require.Equal(t, "s", session.ID())
		const n = 15
		call := func(c *altar.Client, i int) error {
			r, err := c.Session("s").Call(ctx, "math/add", sum{int64(i), 1}, &altar.CallOptions{InvocationID: fmt.Sprint("call-", i)})
			if err != nil {
				return err
			}
			var got int64
			if err := r.Decode(&got); err != nil || got != int64(i)+1 {
				return fmt.Errorf("call %d: got %d, %w", i, got, err)
			}
			return nil
		}
		var wg sync.WaitGroup
		for _, st := range []*station{a, b} {
			for i := range n {
				wg.Go(func() {
					if err := call(st.client, i); err != nil {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		require.EqualValues(t, n, runs.Load(), "runs of %d calls that came twice", n)

		// A restarted Host still knows its outcomes.
		a.close()
		a = newStation(t, p.open(t), "host-a", &runs)
		for i := range n {
			require.NoError(t, call(a.client, i))
		}
		require.EqualValues(t, n, runs.Load(), "runs after the restart")

		// A session that ends at one Host ends at the other a moment later.
		require.NoError(t, b.client.Session("s").Destroy(ctx))
		i := n
		soon(t, "the session has ended at the other Host too", func() bool {
			i++
			err := call(a.client, i)
			var e *altar.Error
			require.True(t, err == nil || errors.As(err, &e), "%v", err)
			return err != nil
		})
		ran := runs.Load() // also the call that the end met in the middle
		require.Error(t, call(a.client, i+1))
		require.Equal(t, ran, runs.Load(), "a call that was refused has run")
	})
}
