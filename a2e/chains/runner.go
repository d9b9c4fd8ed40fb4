// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/a2e/proc"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// TimeLimit returns the time limit of the request.
func (r *Request) TimeLimit() time.Duration {
	return wire.Seconds(r.Timeout, 300)
}

// An Executor does the work of a node: it runs the tool, skill or program of that
// name with an input and returns its output as JSON.
type Executor func(ctx context.Context, call *a2e.Call, name string, input json.RawMessage) (json.RawMessage, error)

// Options adjusts the plugin. Executors are needed for the kinds that chains
// shall use; nodes of other kinds fail with chain_node_error.
type Options struct {
	// Name is the name of the plugin. Empty means "chains".
	Name string

	// Tool, Skill and Proc run the nodes of these kinds. A nil Proc is [proc.Execute].
	Tool, Skill, Proc Executor

	// Evaluator replaces the built-in expression language, by JMESPath for example. It may be called
	// by several goroutines. Each call gets the whole scope, which is a copy in map nodes.
	Evaluator func(expression, scope json.RawMessage) (json.RawMessage, error)

	// MaxBytes bounds the initial input of a chain with its outputs, and the input of each node. An
	// output above it ends the chain, and so does one above the Limits of the host. Zero means 16 MiB; a negative value
	// removes the bound.
	MaxBytes int

	// MaxNodes bounds a chain. Zero means 1000; a negative value removes the bound.
	MaxNodes int

	// MaxItems bounds the items of a map node. Zero means 1000; a negative value removes the bound.
	MaxItems int

	// MaxConcurrent is the number of items of a map node that run at a time. Zero means 4; a
	// negative value removes the bound.
	MaxConcurrent int
}

// NewPlugin returns a plugin that runs chains.
func NewPlugin(opts *Options) (*a2e.Plugin, error) {
	r := &runner{}
	if opts != nil {
		r.opts = *opts
	}
	r.opts.Name = cmp.Or(r.opts.Name, Capability)
	if r.opts.Proc == nil {
		r.opts.Proc = proc.Execute
	}
	r.opts.MaxBytes = option.Count(r.opts.MaxBytes, 16<<20)
	r.opts.MaxNodes = option.Count(r.opts.MaxNodes, 1000)
	r.opts.MaxItems = option.Count(r.opts.MaxItems, 1000)
	r.opts.MaxConcurrent = option.Count(r.opts.MaxConcurrent, 4)
	return &a2e.Plugin{Name: r.opts.Name, Capability: Capability, Types: Types(),
		Routes: []a2e.Route{a2e.NewRoute("chain/req", r.run)}}, nil
}

type runner struct{ opts Options }

// A chain is one run.
type chain struct {
	*runner
	call    *a2e.Call
	request *Request
	nodes   map[string]*Node
	scope   *scope
	size    int  // bytes of the initial input and the outputs
	outputs int  // bytes of the outputs, which the session reserves
	isFull  bool // an output did not fit
	final   json.RawMessage
	run     int64
}

func (r *runner) run(ctx context.Context, call *a2e.Call, req *Request) (*Response, error) {
	if len(req.Nodes) > r.opts.MaxNodes {
		return nil, violation("nodes", a2e.ReasonValue, fmt.Sprintf("at most %d nodes", r.opts.MaxNodes), fmt.Sprint(len(req.Nodes)))
	}
	if err := Validate(req.Nodes, req.EntryNode); err != nil {
		return nil, err
	}
	input, err := wire.CheckJSON(orEmpty(req.InitialInput))
	if err != nil || !input.IsObject() {
		return nil, violation("initial_input", a2e.ReasonType, "object", "")
	}
	if len(input) > r.opts.MaxBytes {
		return nil, violation("initial_input", a2e.ReasonValue, fmt.Sprintf("at most %d bytes", r.opts.MaxBytes), fmt.Sprint(len(input)))
	}
	start := time.Now()
	c := &chain{runner: r, call: call, request: req, nodes: map[string]*Node{}, scope: newScope(input), size: len(input)}
	for i := range req.Nodes {
		c.nodes[req.Nodes[i].NodeID] = &req.Nodes[i]
	}
	defer func() { _ = call.Session.Reserve(-int64(c.outputs)) }()
	err = c.walk(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // the session has answered already
	}
	resp := &Response{ChainID: req.ChainID, Success: err == nil, Outputs: c.scope.outputText(), FinalOutput: c.final,
		DurationMs: time.Since(start).Milliseconds(), NodesRun: c.run}
	if err != nil {
		resp.Error, err = guard.Encode(failureOf(err))
	}
	return resp, err
}

func violation(field, reason, want, got string) *a2e.Error {
	err := a2e.SchemaViolation(field, reason)
	err.Message = wire.Violation(err.Message, want, got)
	err.Capability = Capability
	return err
}

// A failure is the member error of a response.
type failure struct {
	Code    a2e.Code `json:"code"`
	Message string   `json:"message"`
	Reason  string   `json:"reason,omitempty"`
}

func failureOf(err error) failure {
	f := failure{Code: a2e.ErrChainNode, Message: err.Error()}
	if e, ok := errors.AsType[*a2e.Error](err); ok {
		f = failure{e.Code, e.Message, e.Reason}
	}
	f.Message = strings.ToValidUTF8(f.Message, "") // it may have the output of a program
	return f
}

func nodeError(text string) *a2e.Error { return a2e.Errorf(a2e.ErrChainNode, "%s", text) }

// tooLarge returns the error of a node whose data does not fit into the chain.
func (r *runner) tooLarge(what string) error {
	err := nodeError(fmt.Sprintf("%s is above the %d bytes of a chain", what, r.opts.MaxBytes))
	err.Reason = a2e.ReasonTooLarge
	return err
}

// walk runs the nodes one after the other. The nodes form no cycle, so it ends.
func (c *chain) walk(ctx context.Context) error {
	for id := c.request.EntryNode; id != ""; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := c.nodes[id]
		c.emit(n, "start", nil, "")
		output, next, err := c.execute(ctx, n)
		if err == nil {
			err = c.keep(id, output)
		}
		c.run++
		switch {
		case err == nil:
			c.emit(n, "done", c.final, "")
			id = next
		case c.isFull || n.OnError == "" || n.OnError == OnErrorAbort:
			c.emit(n, "error", nil, failureOf(err).Message)
			return err
		case n.OnError == OnErrorSkip:
			c.emit(n, "skip", nil, failureOf(err).Message)
			id = n.NextNode
		default:
			c.emit(n, "error", nil, failureOf(err).Message)
			id = n.OnError
		}
	}
	return nil
}

// keep adds the output of a node to the scope.
func (c *chain) keep(id string, output json.RawMessage) error {
	v, err := wire.CheckJSON(output)
	if err != nil {
		return nodeError("the output is not JSON")
	}
	if len(v) > c.opts.MaxBytes-c.size {
		c.isFull = true
		return c.tooLarge("the output")
	}
	if err := c.call.Session.Reserve(int64(len(v))); err != nil {
		c.isFull = true
		return err
	}
	c.size, c.outputs = c.size+len(v), c.outputs+len(v)
	c.final = json.RawMessage(c.scope.add(id, v))
	return nil
}

func (c *chain) emit(n *Node, phase string, output json.RawMessage, text string) {
	_ = c.call.EmitBody("chain/event", func(seq int64) any { // a disconnected agent also ends ctx
		return &Event{Kind: a2e.EventStatus, ReqID: c.call.Message.ID, Seq: seq, NodeID: n.NodeID, Phase: phase, Output: output, Error: text}
	})
}

// execute runs a node and returns the id of the next one.
func (c *chain) execute(ctx context.Context, n *Node) (output json.RawMessage, next string, err error) {
	switch n.Kind {
	case NodeBranch:
		if holds(n.Condition, func(path string) strictjson.Value { return c.scope.find(path, nil) }) {
			return json.RawMessage("true"), n.TrueNode, nil
		}
		return json.RawMessage("false"), n.FalseNode, nil
	case NodeMap:
		output, err = c.mapItems(ctx, n)
	default:
		output, err = c.work(ctx, n, nil)
	}
	return output, n.NextNode, err
}

// work runs a node of a tool, skill or process, for an item unless that is nil.
func (c *chain) work(ctx context.Context, n *Node, item strictjson.Value) (json.RawMessage, error) {
	input, err := c.input(n, item)
	if err == nil && len(input) > c.opts.MaxBytes {
		err = c.tooLarge("the input")
	}
	if err != nil {
		return nil, err
	}
	var f Executor
	switch n.Kind {
	case NodeTool:
		f = c.opts.Tool
	case NodeSkill:
		f = c.opts.Skill
	case NodeProc:
		f = c.opts.Proc
	}
	if f == nil {
		return nil, nodeError(fmt.Sprintf("nodes of kind %s cannot run here", n.Kind))
	}
	output, err := f(ctx, c.call, n.Name, input)
	if err == nil && output == nil {
		output = json.RawMessage("null")
	}
	return output, err
}

// input returns the input of a node: the values of its input_map, else its literal input, else the
// item.
func (c *chain) input(n *Node, item strictjson.Value) (json.RawMessage, error) {
	expressions, err := wire.CheckJSON(orEmpty(n.InputMap))
	if err != nil {
		return nil, err
	}
	if !hasMembers(expressions) {
		literal, err := wire.CheckJSON(orEmpty(n.Input))
		if err == nil && item != nil && !hasMembers(literal) {
			literal = append(appendMember([]byte{'{'}, strictjson.Value(`"item"`), item), '}')
		}
		return json.RawMessage(literal), err
	}
	input := []byte{'{'}
	for m := expressions.Members(); m.Next(); {
		value, err := c.evaluate(m.Value, item)
		if err != nil {
			return nil, err
		}
		if len(value) > c.opts.MaxBytes-len(input) {
			return nil, c.tooLarge("the input")
		}
		input = appendMember(slices.Grow(input, len(m.Key)+len(value)+3), m.Key, value)
	}
	return append(input, '}'), nil
}

func hasMembers(v strictjson.Value) bool {
	m := v.Members()
	return m.Next()
}

// evaluate returns the value of an expression.
func (c *chain) evaluate(expression, item strictjson.Value) (strictjson.Value, error) {
	if c.opts.Evaluator != nil {
		value, err := c.opts.Evaluator(json.RawMessage(expression), json.RawMessage(c.scope.all(item)))
		if err != nil {
			return nil, err
		}
		return wire.CheckJSON(value)
	}
	if text, ok := expression.TextBytes(); ok && isPath(string(text)) {
		return c.scope.find(string(text), item), nil
	}
	return expression, nil
}

func orEmpty(raw json.RawMessage) json.RawMessage {
	if raw == nil {
		return json.RawMessage("{}")
	}
	return raw
}

// mapItems runs the map node for each item, a bounded number at a time, and returns the list of the
// outputs in the order of the items.
func (c *chain) mapItems(ctx context.Context, n *Node) (json.RawMessage, error) {
	v, err := c.evaluate(strictjson.AppendString(nil, n.ItemsPath), nil)
	if err != nil || !v.IsArray() {
		return nil, nodeError("items_path does not lead to a list")
	}
	var items []strictjson.Value
	for e := v.Elements(); e.Next(); {
		if len(items) == c.opts.MaxItems {
			return nil, nodeError(fmt.Sprintf("the list has more than %d items", c.opts.MaxItems))
		}
		items = append(items, e.Value)
	}
	node := c.nodes[n.MapNode]
	if node.Kind == NodeBranch || node.Kind == NodeMap {
		return nil, nodeError("only nodes of tools, skills and processes can be mapped")
	}
	outputs, err := c.mapAll(ctx, node, items)
	if err != nil {
		return nil, err
	}
	return append(append([]byte{'['}, bytes.Join(outputs, []byte{','})...), ']'), nil
}

// mapAll runs a node for each item. The first failure ends the others.
func (c *chain) mapAll(ctx context.Context, node *Node, items []strictjson.Value) ([][]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outputs := make([][]byte, len(items))
	errs := make([]error, len(items))
	slots := make(chan struct{}, min(c.opts.MaxConcurrent, len(items)))
	var size atomic.Int64 // of the outputs
	var all sync.WaitGroup
	for i := range items {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			guard.Run("chain node", func() (err error) {
				if err = ctx.Err(); err == nil {
					outputs[i], err = c.work(ctx, node, items[i])
				}
				return err
			}, func(err error) {
				errs[i] = err
				if size.Add(int64(len(outputs[i])+1)) > int64(c.opts.MaxBytes-c.size) {
					outputs[i] = nil
				}
				if errs[i] != nil || outputs[i] == nil {
					cancel()
				}
			})
		})
	}
	all.Wait()
	if size.Load() > int64(c.opts.MaxBytes-c.size) {
		c.isFull = true
		return nil, c.tooLarge("the output")
	}
	for _, err := range errs {
		if errors.As(err, new(*guard.PanicError)) {
			return nil, nodeError("internal error")
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			return nil, err
		}
	}
	return outputs, errors.Join(errs...)
}
