// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/fivewire/fivewire/conformance/fault"
)

const (
	window     = 64 << 10               // bytes of a direction that are sent and not read
	stallDelay = 20 * time.Millisecond  // until a withheld delivery is tried again
	backlog    = 128                    // connections that wait for Accept
	minLatency = 200 * time.Microsecond // of a delivery
	maxLatency = 20 * time.Millisecond
)

var networkKinds = []kind{
	kind(fault.Cut), kind(fault.HalfClose), kind(fault.Truncate), kind(fault.Corrupt), kind(fault.Drop),
	kind(fault.Duplicate), kind(fault.Reorder), kindPartition,
}

// UseNetwork adds the faults of the network to those of the run, except some. It must be called before the first
// node.
func (w *World) UseNetwork(except ...fault.Action) {
	kinds := slices.Concat(storeKinds, nodeKinds, networkKinds)
	w.swarm = drawSwarm(w.seed, slices.DeleteFunc(kinds, func(k kind) bool { return slices.Contains(except, fault.Action(k)) }))
}

// A network connects the nodes.
type network struct {
	w *World

	mu        sync.Mutex // guards all below
	listeners map[string]*listener
	conns     map[*conn]bool
	blocked   map[[2]string]bool // partitions, from and to
	paused    map[string]bool
	count     int // of connections
}

func newNetwork(w *World) *network {
	return &network{w: w, listeners: map[string]*listener{}, conns: map[*conn]bool{}, blocked: map[[2]string]bool{},
		paused: map[string]bool{}}
}

func (n *network) cut(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.blocked[[2]string{from, to}] = true
}

func (n *network) join(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.blocked, [2]string{from, to})
}

func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.blocked)
}

func (n *network) pause(node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.paused[node] = true
}

func (n *network) resume(node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.paused, node)
}

// isBlocked reports whether deliveries between two nodes are withheld.
func (n *network) isBlocked(from, to string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.blocked[[2]string{from, to}] || n.paused[from] || n.paused[to]
}

// crash cuts the connections of a node and closes its listeners.
func (n *network) crash(node string) {
	n.mu.Lock()
	delete(n.paused, node)
	var conns []*conn
	for c := range n.conns {
		if c.from == node || c.to == node {
			conns = append(conns, c)
		}
	}
	var listeners []*listener
	for _, l := range n.listeners {
		if l.node == node {
			listeners = append(listeners, l)
		}
	}
	n.mu.Unlock()
	slices.SortFunc(conns, func(a, b *conn) int { return a.id - b.id })
	for _, c := range conns {
		c.reset()
	}
	for _, l := range listeners {
		_ = l.Close()
	}
}

func (n *network) close() {
	for _, node := range n.w.allNodes() {
		n.crash(node.name)
	}
}

// Listen listens at an address of the network, any text. The listener ends with the crash of the node.
func (v *View) Listen(address string) (net.Listener, error) {
	n := v.Node.w.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[address] != nil || v.IsCrashed() {
		return nil, &net.OpError{Op: "listen", Net: "sim", Addr: addr(address), Err: syscall.EADDRINUSE}
	}
	l := &listener{n: n, node: v.Node.name, address: address, queue: make(chan *conn, backlog), done: make(chan struct{})}
	n.listeners[address] = l
	return l, nil
}

// Dial connects to a listener. It has the form of the dial function of http.Transport.
func (v *View) Dial(ctx context.Context, _, address string) (net.Conn, error) {
	w := v.Node.w
	n := w.network
	refused := &net.OpError{Op: "dial", Net: "sim", Addr: addr(address), Err: syscall.ECONNREFUSED}
	if err := w.Sleep(ctx, w.between(minLatency, maxLatency, "dial", v.Node.name, address)); err != nil {
		return nil, err
	}
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil || v.IsCrashed() {
		return nil, refused
	}
	for n.isBlocked(v.Node.name, l.node) || n.isBlocked(l.node, v.Node.name) {
		err := w.Sleep(ctx, stallDelay)
		if err == nil && v.IsCrashed() {
			err = refused
		}
		if err != nil {
			return nil, err
		}
	}
	select {
	case <-l.done:
		return nil, refused
	default:
	}
	client, server := n.connect(v.Node.name, l.node, address)
	select {
	case l.queue <- server:
		w.Event(v.Node.name, "dial", address, "ok")
		return client, nil
	default:
		client.reset()
		return nil, refused
	}
}

// RoundTripper returns a view of rt whose requests are doubled and reordered, as by a proxy that repeats them.
func (v *View) RoundTripper(rt http.RoundTripper) http.RoundTripper {
	w := v.Node.w
	plan := &fault.Plan{OnFault: v.Node.permit}
	for _, a := range []fault.Action{fault.Duplicate, fault.Reorder} {
		if rate := w.swarm.rates[kind(a)]; rate > 0 {
			plan.Rules = append(plan.Rules, fault.Rule{Action: a, Op: "request", When: func(op, name string) bool {
				return !w.isCalm.Load() && w.chance("fault", v.Node.name, string(a), op, name) < rate
			}})
		}
	}
	v.Node.mu.Lock()
	v.Node.plans = append(v.Node.plans, plan)
	v.Node.mu.Unlock()
	return fault.RoundTripper(rt, plan)
}

type addr string

func (addr) Network() string  { return "sim" }
func (a addr) String() string { return string(a) }

type listener struct {
	n             *network
	node, address string
	queue         chan *conn
	done          chan struct{}
	once          sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.done:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		l.n.mu.Lock()
		delete(l.n.listeners, l.address)
		l.n.mu.Unlock()
		close(l.done)
		for {
			select {
			case c := <-l.queue:
				c.reset()
			default:
				return
			}
		}
	})
	return nil
}

func (l *listener) Addr() net.Addr { return addr(l.address) }

// A conn is one end of a connection.
type conn struct {
	n             *network
	id            int
	from, to      string // nodes
	local, remote addr
	in, out       *direction
	read, write   *deadline
}

func (n *network) connect(from, to, address string) (client, server *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.count++
	id := n.count
	up, down := newDirection(n, from, to, id), newDirection(n, to, from, id)
	peer := addr(fmt.Sprintf("%s:%d", from, id))
	client = &conn{n, 2 * id, from, to, peer, addr(address), down, up, newDeadline(), newDeadline()}
	server = &conn{n, 2*id + 1, to, from, addr(address), peer, up, down, newDeadline(), newDeadline()}
	n.conns[client], n.conns[server] = true, true
	return client, server
}

var errReset = &net.OpError{Op: "read", Net: "sim", Err: syscall.ECONNRESET}

// reset ends both directions with an error.
func (c *conn) reset() {
	c.in.fail(errReset)
	c.out.fail(errReset)
	c.forget()
}

func (c *conn) forget() {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	delete(c.n.conns, c)
}

func (c *conn) Read(b []byte) (int, error) { return c.in.read(b, c.read) }

// Write sends one segment, with the faults of the network.
func (c *conn) Write(b []byte) (int, error) {
	w := c.n.w
	sent := slices.Clone(b)
	for _, k := range w.swarm.kinds {
		if !slices.Contains(networkKinds, k) || w.isCalm.Load() ||
			w.chance("net", string(k), c.from, c.to, fmt.Sprint(c.id)) >= w.swarm.rates[k]/4 {
			continue
		}
		random := w.draw("id", string(k), c.from, c.to, fmt.Sprint(c.id))
		if k == kindPartition || !w.permit(fmt.Sprintf("%s/%s/%08x", c.from, k, random>>32), fmt.Sprintf("%s: %s of %d bytes to %s", c.from, k, len(b), c.to)) {
			continue
		}
		w.Event(c.from, "fault", string(c.remote), string(k))
		switch fault.Action(k) {
		case fault.Cut:
			c.reset()
			return 0, errReset
		case fault.HalfClose:
			c.out.send(sent, c.write, true)
			return len(b), nil
		case fault.Truncate:
			_, _ = c.out.send(sent[:int(random%uint64(len(b)+1))], c.write, false)
			c.out.fail(errReset)
			return len(b), nil
		case fault.Corrupt:
			if len(sent) > 0 {
				sent[random/8%uint64(len(sent))] ^= 1 << (random % 8)
			}
		case fault.Drop: // nothing arrives any longer
			c.out.silence()
		}
	}
	return c.out.send(sent, c.write, false)
}

// Close closes both directions: the peer reads the sent bytes, then the end.
func (c *conn) Close() error {
	c.in.fail(net.ErrClosed)
	_, _ = c.out.send(nil, c.write, true)
	c.forget()
	return nil
}

// CloseWrite closes the direction of sending.
func (c *conn) CloseWrite() error {
	_, err := c.out.send(nil, c.write, true)
	return err
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.read.set(t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.write.set(t)
	return nil
}
