// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/testkit"
	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/natsstore/embedded"
)

const (
	natsServerArg  = "nats-server"
	clusterEngine  = "NATS, three servers"
	embeddedEngine = "NATS embedded"
	postgresCtlEnv = "FIVEWIRE_POSTGRES_CTL"
)

// serveNATS is a NATS server in a separate process, with the address for a cluster and those of the other servers as
// the rest.
func serveNATS(dir, address string, cluster []string) {
	opts := &embedded.Options{Listen: address}
	if len(cluster) > 0 {
		opts.Cluster = &embedded.Cluster{Node: nodeName(cluster[0]), Listen: cluster[0], Peers: cluster[1:]}
		opts.Configure = func(o *server.Options) {
			// Only the given addresses are used: those before which a test may place a wire.
			o.Cluster.NoAdvertise, o.Cluster.Advertise = true, "127.0.0.1:1"
		}
	}
	if _, err := embedded.Start(dir, opts); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {}
}

// A serverFault is a fault of the server of an engine, or of the network in front of it. The function disturbs once.
type serverFault struct {
	fault, engine string
	create        func(t *testing.T) (p *place, disturb func() error)
}

var serverFaults = append(partitions(), []serverFault{
	{"kill -9 of the server", "NATS", func(t *testing.T) (*place, func() error) {
		p, server := natsServer(t)
		return p, func() error { return server.Kill(0) }
	}},
	{"server stopped for 2 s", "NATS", func(t *testing.T) (*place, func() error) {
		if runtime.GOOS == "windows" {
			t.Skip("cannot stop a process")
		}
		p, server := natsServer(t)
		return p, func() error { return server.Stop(2*time.Second, 0) }
	}},
	{"kill -9 of one server after the other", clusterEngine, func(t *testing.T) (*place, func() error) {
		p, servers, _ := natsCluster(t)
		i := 0
		return p, func() error {
			i++
			return servers[i%3].Kill(0)
		}
	}},
	{"one server after the other stopped for 2 s", clusterEngine, func(t *testing.T) (*place, func() error) {
		p, servers, _ := natsCluster(t)
		i := 0
		return p, func() error {
			i++
			return servers[i%3].Stop(2*time.Second, 0)
		}
	}},
	{"one server after the other cut off for 12 s", clusterEngine, func(t *testing.T) (*place, func() error) {
		p, wires := wiredCluster(t)
		i := 0
		return p, func() error {
			i++
			cutAll(12*time.Second, wires[i%3])
			return nil
		}
	}},
	{"leader stopped for 12 s", clusterEngine, func(t *testing.T) (*place, func() error) {
		p, servers, names := natsCluster(t)
		return p, func() error {
			leader, err := natsLeader(t.Context(), p)
			if err != nil {
				return err
			}
			return servers[slices.Index(names, leader)].Stop(12*time.Second, 0)
		}
	}},
	{"clock of the server jumps by an hour", "PostgreSQL", clockJumps},
	{"server stopped for 2 s", "PostgreSQL", func(t *testing.T) (*place, func() error) {
		dir := os.Getenv("FIVEWIRE_POSTGRES_DIR")
		if dir == "" {
			t.Skip("needs to stop PostgreSQL: FIVEWIRE_POSTGRES_DIR is not set")
		}
		return postgres(t), func() error { return stopPostgres(dir) }
	}},
	{"kill -9 of the server", "PostgreSQL", func(t *testing.T) (*place, func() error) {
		control := os.Getenv(postgresCtlEnv)
		if control == "" {
			t.Skipf("needs to stop PostgreSQL: %s is not set", postgresCtlEnv)
		}
		return postgres(t), func() error {
			return errors.Join(exec.Command(control, "kill").Run(), exec.Command(control, "start").Run())
		}
	}},
}...)

// partitions are the faults of the network between processes and their server, in each direction and in both.
func partitions() (all []serverFault) {
	for _, d := range []struct {
		fault      string
		directions []int
	}{{"requests withheld for 2 s", []int{toServer}}, {"answers withheld for 2 s", []int{toClient}}, {"partition for 2 s", []int{toServer, toClient}}} {
		for _, e := range engines[2:] {
			all = append(all, serverFault{d.fault, e.name, func(t *testing.T) (*place, func() error) {
				p, w := e.create(t).behindWire(t)
				return p, func() error { return w.cut(2*time.Second, d.directions...) }
			}})
		}
	}
	return all
}

// A wire is a proxy to a server, with a lock for each direction of its bytes.
type wire struct {
	net.Listener
	address string
	pass    [2]sync.RWMutex
}

const toServer, toClient = 0, 1

// behindWire returns the place with a wire before its server.
func (p *place) behindWire(t *testing.T) (*place, *wire) {
	server, err := url.Parse(p.name[strings.LastIndexByte(p.name, ' ')+1:])
	require.NoError(t, err)
	w := newWire(t, server.Host)
	return &place{name: strings.Replace(p.name, server.Host, w.Addr().String(), 1), isWired: p.isWired}, w
}

func newWire(t *testing.T, address string) *wire {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := &wire{Listener: ln, address: address}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go l.serve(client)
		}
	}()
	return l
}

func (l *wire) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", l.address)
	if err != nil {
		return
	}
	go func() {
		defer client.Close()
		l.forward(client, server, toClient)
	}()
	defer server.Close()
	l.forward(server, client, toServer)
}

func (l *wire) forward(to io.Writer, from io.Reader, direction int) {
	for buf := make([]byte, 32<<10); ; {
		n, err := from.Read(buf)
		l.pass[direction].RLock()
		_, writeErr := to.Write(buf[:n])
		l.pass[direction].RUnlock()
		if err != nil || writeErr != nil {
			return
		}
	}
}

// cut withholds the bytes of some directions for a time.
func (l *wire) cut(d time.Duration, directions ...int) error {
	for _, i := range directions {
		l.pass[i].Lock()
		defer l.pass[i].Unlock()
	}
	time.Sleep(d)
	return nil
}

// cutAll withholds the bytes of some wires in both directions for a time.
func cutAll(d time.Duration, wires []*wire) {
	var all sync.WaitGroup
	for _, w := range wires {
		all.Go(func() { _ = w.cut(d, toServer, toClient) })
	}
	all.Wait()
}

// stopPostgres stops all processes of PostgreSQL for 2 s.
func stopPostgres(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		return err
	}
	server, _, _ := strings.Cut(string(data), "\n")
	if err := exec.Command("kill", "-STOP", server).Run(); err != nil { // it starts no other then
		return err
	}
	children, err := exec.Command("ps", "-o", "pid=", "--ppid", server).Output()
	pids := strings.Fields(string(children))
	_ = exec.Command("kill", append([]string{"-STOP"}, pids...)...).Run() // some may have ended
	time.Sleep(2 * time.Second)
	_ = exec.Command("kill", append([]string{"-CONT", server}, pids...)...).Run()
	return err
}

// natsServer starts a NATS server in a separate process.
func natsServer(t *testing.T) (*place, *fault.Process) {
	address := testkit.FreeAddress(t)
	server := natsProcess(t, address)
	return natsPlace(t, address), server
}

// natsCluster starts three NATS servers that keep the data together.
func natsCluster(t *testing.T) (p *place, servers []*fault.Process, names []string) {
	addresses := testkit.FreeAddresses(t, 6)
	routes := addresses[3:]
	for i, address := range addresses[:3] {
		servers = append(servers, natsProcess(t, address, append([]string{routes[i]}, routes...)...))
		names = append(names, nodeName(routes[i]))
	}
	return natsPlace(t, strings.Join(addresses[:3], ",nats://")), servers, names
}

func nodeName(route string) string { return "node-" + route[strings.LastIndexByte(route, ':')+1:] }

// natsLeader returns the name of the server that leads the stream with the records.
func natsLeader(ctx context.Context, p *place) (string, error) {
	nc, err := nats.Connect(strings.TrimPrefix(p.name, "nats "))
	if err != nil {
		return "", err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return "", err
	}
	stream, err := js.Stream(ctx, "fivewire_log")
	if err != nil {
		return "", err
	}
	return stream.CachedInfo().Cluster.Leader, nil
}

// wiredCluster is natsCluster with a wire before each server, and one in each direction between two servers. The wires
// of a server are all those that carry bytes to or from it.
func wiredCluster(t *testing.T) (p *place, wires [3][]*wire) {
	addresses := testkit.FreeAddresses(t, 6)
	routes := addresses[3:]
	front := make([]string, 3)
	for i := range front {
		w := newWire(t, addresses[i])
		front[i], wires[i] = w.Addr().String(), append(wires[i], w)
		peers := []string{routes[i]}
		for j := range routes {
			if j != i {
				w := newWire(t, routes[j])
				peers = append(peers, w.Addr().String())
				wires[i], wires[j] = append(wires[i], w), append(wires[j], w)
			}
		}
		natsProcess(t, addresses[i], peers...)
	}
	return natsPlace(t, strings.Join(front, ",nats://")), wires
}

func natsProcess(t *testing.T, address string, cluster ...string) *fault.Process {
	ctx, cancel := context.WithCancel(context.Background())
	server, err := fault.Command(ctx, os.Args[0], append([]string{natsServerArg, t.TempDir(), address}, cluster...)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		_ = server.Kill(0) // waits for the end
	})
	return server
}

// natsPlace waits until a store can be opened at the addresses.
func natsPlace(t *testing.T, addresses string) *place {
	p := &place{name: "nats nats://" + addresses}
	soon(t, "the start of the server", func() bool {
		s, err := openPlace(t.Context(), p.name)
		if err != nil {
			return false
		}
		require.NoError(t, s.(interface{ Close() error }).Close())
		return true
	})
	return p
}

// serverRounds disturbs the server under two writers, which repeat each append until it is acknowledged.
func (c *resultCell) serverRounds(t *testing.T, p *place, rounds int, disturb func() error) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex // guards the next two
	acknowledged, last := map[string][]string{}, time.Now()
	acknowledge := func(writer, id string) {
		mu.Lock()
		defer mu.Unlock()
		acknowledged[writer] = append(acknowledged[writer], id)
		c.Silence = max(c.Silence, time.Since(last))
		last = time.Now()
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acknowledged["a"]) + len(acknowledged["b"])
	}
	var writers sync.WaitGroup
	for _, writer := range []string{"a", "b"} {
		s := p.open(t)
		writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				id := fmt.Sprint(writer, " ", i)
				for ctx.Err() == nil {
					if _, err := s.Append(ctx, "s", id, []byte("value of "+id), 24*time.Hour); err == nil || errors.Is(err, store.ErrDuplicate) {
						acknowledge(writer, id)
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	for range rounds {
		before := count()
		soon(t, "appends before the fault", func() bool { return count() >= before+20 })
		require.NoError(t, disturb())
		before = count()
		soon(t, "appends after the fault", func() bool { return count() >= before+20 })
		c.Rounds++
	}
	stop()
	writers.Wait()
	require.NoError(t, c.classify(acknowledged, p.open(t)))
}
