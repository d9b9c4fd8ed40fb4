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
	"sync"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
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

	// Tool, Skill and Proc run the nodes of these kinds.
	Tool, Skill, Proc Executor

	// Evaluator replaces the built-in expression language, by JMESPath for
	// example.
	Evaluator func(expression, scope json.RawMessage) (json.RawMessage, error)

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
	if r.opts.Evaluator == nil {
		r.opts.Evaluator = EvaluateExpression
	}
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
	scope   a2e.Members // the initial input, and over it the outputs by node
	outputs a2e.Members
	final   json.RawMessage
	run     int64
}

func (r *runner) run(ctx context.Context, call *a2e.Call, req *Request) (*Response, error) {
	if len(req.Nodes) > r.opts.MaxNodes {
		return nil, a2e.SchemaViolation("nodes", a2e.ReasonValue)
	}
	if err := Validate(req.Nodes, req.EntryNode); err != nil {
		return nil, err
	}
	start := time.Now()
	c := &chain{runner: r, call: call, request: req, nodes: map[string]*Node{}}
	for i := range req.Nodes {
		c.nodes[req.Nodes[i].NodeID] = &req.Nodes[i]
	}
	if req.InitialInput != nil {
		m, err := a2e.ParseMembers(req.InitialInput)
		if err != nil {
			return nil, a2e.SchemaViolation("initial_input", a2e.ReasonType)
		}
		c.scope = m
	}
	err := c.walk(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // the session has answered already
	}
	outputs, _ := c.outputs.MarshalJSON()
	resp := &Response{ChainID: req.ChainID, Success: err == nil, Outputs: outputs, FinalOutput: c.final,
		DurationMs: time.Since(start).Milliseconds(), NodesRun: c.run}
	if err != nil {
		code, text := a2e.ErrChainNode, err.Error()
		var e *a2e.Error
		if errors.As(err, &e) {
			code, text = e.Code, e.Message
		}
		var m a2e.Members
		if err := errors.Join(m.Set("code", code), m.Set("message", text)); err != nil {
			return nil, err
		}
		resp.Error, _ = m.MarshalJSON()
	}
	return resp, nil
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
		c.run++
		if err == nil {
			if err = errors.Join(c.scope.Set(id, output), c.outputs.Set(id, output)); err != nil {
				return err
			}
			c.final = output
			c.emit(n, "done", output, "")
			id = next
			continue
		}
		switch n.OnError {
		case "", OnErrorAbort:
			c.emit(n, "error", nil, message(err))
			return err
		case OnErrorSkip:
			c.emit(n, "skip", nil, message(err))
			id = n.NextNode
		default:
			c.emit(n, "error", nil, message(err))
			id = n.OnError
		}
	}
	return nil
}

func message(err error) string {
	var e *a2e.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}

func (c *chain) emit(n *Node, phase string, output json.RawMessage, text string) {
	_ = c.call.EmitBody("chain/event", func(seq int64) any { // a disconnected agent also ends ctx
		return &Event{Kind: a2e.EventStatus, ReqID: c.call.ID(), Seq: seq, NodeID: n.NodeID, Phase: phase, Output: output, Error: text}
	})
}

func (c *chain) scopeText() json.RawMessage {
	text, _ := c.scope.MarshalJSON()
	return text
}

// execute runs a node and returns the id of the next one.
func (c *chain) execute(ctx context.Context, n *Node) (output json.RawMessage, next string, err error) {
	switch n.Kind {
	case NodeBranch:
		ok, err := EvaluateCondition(n.Condition, c.scopeText())
		if err != nil {
			return nil, "", err
		}
		if ok {
			return json.RawMessage("true"), n.TrueNode, nil
		}
		return json.RawMessage("false"), n.FalseNode, nil
	case NodeMap:
		output, err = c.mapItems(ctx, n)
		return output, n.NextNode, err
	}
	input, err := c.input(n, c.scopeText(), nil)
	if err != nil {
		return nil, "", err
	}
	output, err = c.work(ctx, n, input)
	return output, n.NextNode, err
}

func (c *chain) work(ctx context.Context, n *Node, input json.RawMessage) (json.RawMessage, error) {
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
		return nil, a2e.Errorf(a2e.ErrChainNode, "%s", fmt.Sprintf("nodes of kind %s cannot run here", n.Kind))
	}
	output, err := f(ctx, c.call, n.Name, input)
	if err == nil && output == nil {
		output = json.RawMessage("null")
	}
	return output, err
}

// input returns the input of a node: the values of its input_map, else its literal input, else def.
func (c *chain) input(n *Node, scope, def json.RawMessage) (json.RawMessage, error) {
	expressions, err := a2e.ParseMembers(orEmpty(n.InputMap))
	if err != nil {
		return nil, err
	}
	if expressions.Len() == 0 {
		literal, err := a2e.ParseMembers(orEmpty(n.Input))
		if err == nil && literal.Len() == 0 && def != nil {
			return def, nil
		}
		return orEmpty(n.Input), err
	}
	var input a2e.Members
	for name, expression := range expressions.All() {
		value, err := c.opts.Evaluator(expression, scope)
		if err != nil {
			return nil, err
		}
		if err := input.Set(name, value); err != nil {
			return nil, err
		}
	}
	return input.MarshalJSON()
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
	path := strictjson.AppendString(nil, n.ItemsPath)
	list, err := c.opts.Evaluator(path, c.scopeText())
	if err != nil {
		return nil, err
	}
	v, err := wire.CheckJSON(list)
	if err != nil || !v.IsArray() {
		return nil, a2e.Errorf(a2e.ErrChainNode, "items_path does not lead to a list")
	}
	var items []json.RawMessage
	for e := v.Elements(); e.Next(); {
		items = append(items, json.RawMessage(e.Value))
	}
	if len(items) > c.opts.MaxItems {
		return nil, a2e.Errorf(a2e.ErrChainNode, "the list has too many items")
	}
	node := c.nodes[n.MapNode]
	if node.Kind == NodeBranch || node.Kind == NodeMap {
		return nil, a2e.Errorf(a2e.ErrChainNode, "only nodes that do something can be mapped")
	}
	outputs, err := c.mapAll(ctx, node, items)
	if err != nil {
		return nil, err
	}
	return joinList(outputs), nil
}

// mapAll runs a node for each item. The first failure ends the others.
func (c *chain) mapAll(ctx context.Context, node *Node, items []json.RawMessage) ([]json.RawMessage, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outputs := make([]json.RawMessage, len(items))
	errs := make([]error, len(items))
	slots := make(chan struct{}, c.opts.MaxConcurrent)
	var all sync.WaitGroup
	for i := range items {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			defer func() {
				if p := recover(); p != nil {
					errs[i] = a2e.Errorf(a2e.ErrChainNode, "internal error")
				}
				if errs[i] != nil {
					cancel()
				}
			}()
			outputs[i], errs[i] = c.mapOne(ctx, node, items[i])
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return nil, err
		}
	}
	return outputs, errors.Join(errs...)
}

func joinList(items []json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('[')
	for i, item := range items {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(item)
	}
	b.WriteByte(']')
	return b.Bytes()
}

func (c *chain) mapOne(ctx context.Context, node *Node, item json.RawMessage) (json.RawMessage, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	scope := c.scope
	if err := scope.Set("item", item); err != nil {
		return nil, err
	}
	text, _ := scope.MarshalJSON()
	var own a2e.Members
	if err := own.Set("item", item); err != nil {
		return nil, err
	}
	def, _ := own.MarshalJSON()
	input, err := c.input(node, text, def)
	if err != nil {
		return nil, err
	}
	return c.work(ctx, node, input)
}
