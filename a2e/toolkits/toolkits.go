// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package toolkits

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/fivewire/fivewire/a2e"
)

// Values of [ConfigureResponse.Status].
const (
	StatusOK      = "ok"
	StatusError   = "error"
	StatusPartial = "partial"
)

// A Toolkit is a group of tools that are configured together. Its definition holds a JSON Schema of
// the configuration, or none to accept any configuration. A session that has not configured it cannot
// list or call the tools that the definition names (A2E-D68), unless another toolkit has them, too, and
// is configured. Configurations end with their session, and with their process.
type Toolkit struct {
	Definition Definition

	// Configure receives a configuration that matches the schema, for one session. The agent
	// receives the message of an [*a2e.Error]; any other error is reported without its text, which
	// may contain secrets of the configuration.
	Configure func(ctx context.Context, s *a2e.Session, config json.RawMessage) error
}

// ErrPartialConfig reports a configuration that was accepted in part.
var ErrPartialConfig = errors.New("toolkits: configured in part")

// Options adjusts the plugin. The zero value is right for production.
type Options struct {
	// Name is the name of the plugin. Empty means "toolkits".
	Name string
}

// NewPlugin returns a plugin that lists and configures toolkits. Configurations are never logged.
// It fails if a name is empty or occurs twice, or if a schema is invalid.
func NewPlugin(toolkits []Toolkit, opts *Options) (*a2e.Plugin, error) {
	name := Capability
	if opts != nil {
		name = cmp.Or(opts.Name, Capability)
	}
	b := &box{byTool: map[string][]*kit{}}
	for _, t := range toolkits {
		if name := t.Definition.Name; name == "" || slices.ContainsFunc(b.kits, func(k kit) bool { return k.Definition.Name == name }) {
			return nil, fmt.Errorf("toolkits: the name %q is empty or occurs twice", name)
		}
		k := kit{Toolkit: t}
		if len(t.Definition.Schema) > 0 {
			var config jsonschema.Schema
			err := json.Unmarshal(t.Definition.Schema, &config)
			if err == nil {
				k.schema, err = config.Resolve(nil)
			}
			if err != nil {
				return nil, fmt.Errorf("toolkits: schema of %q: %w", t.Definition.Name, err)
			}
		}
		b.kits = append(b.kits, k)
		for _, tool := range t.Definition.Tools {
			b.byTool[tool] = append(b.byTool[tool], &k)
		}
	}
	return &a2e.Plugin{
		Name: name, Capability: Capability, Types: Types(),
		Open: func(*a2e.Session) (any, error) { return &configured{box: b, names: map[string]bool{}}, nil },
		Routes: []a2e.Route{
			a2e.NewRoute("toolkit/list/req", b.list),
			a2e.NewRoute("toolkit/configure/req", b.configure),
		},
	}, nil
}

type box struct {
	kits   []kit
	byTool map[string][]*kit // that have a tool
}

type kit struct {
	Toolkit
	schema *jsonschema.Resolved
}

type configured struct {
	box *box

	mu    sync.Mutex
	names map[string]bool
}

// HidesTool reports whether a tool belongs to toolkits, none of which is configured. Package tools calls
// it.
func (c *configured) HidesTool(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	kits := c.box.byTool[name]
	return len(kits) > 0 && !slices.ContainsFunc(kits, func(k *kit) bool { return k.Definition.Configured || c.names[k.Definition.Name] })
}

func (b *box) list(_ context.Context, call *a2e.Call, r *ListRequest) (*ListResponse, error) {
	c := call.PluginState().(*configured)
	c.mu.Lock()
	defer c.mu.Unlock()
	resp := &ListResponse{}
	for _, k := range b.kits {
		d := k.Definition
		if r.FilterKind != "" && d.Category != "" && d.Category != r.FilterKind || !tagged(d.Tags, r.FilterTags) {
			continue
		}
		d.Configured = d.Configured || c.names[d.Name]
		resp.Toolkits = append(resp.Toolkits, d)
	}
	return resp, nil
}

func tagged(own, wanted []string) bool {
	for _, tag := range wanted {
		if !slices.ContainsFunc(own, func(o string) bool { return strings.EqualFold(o, tag) }) {
			return false
		}
	}
	return true
}

// fits reports whether a configuration fits its schema. The error may contain secrets.
func fits(schema *jsonschema.Resolved, config json.RawMessage) bool {
	var v any
	return json.Unmarshal(config, &v) == nil && schema.Validate(v) == nil
}

// configure answers in the response what is wrong with a configuration (P-21).
func (b *box) configure(ctx context.Context, call *a2e.Call, r *ConfigureRequest) (*ConfigureResponse, error) {
	answer := func(status, text string) (*ConfigureResponse, error) {
		resp := &ConfigureResponse{ToolkitName: r.ToolkitName, Status: status}
		if text != "" {
			resp.Message = &text
		}
		return resp, nil
	}
	if r.ToolkitName == "" {
		return answer(StatusError, "missing toolkit_name")
	}
	i := slices.IndexFunc(b.kits, func(k kit) bool { return k.Definition.Name == r.ToolkitName })
	if i < 0 {
		return answer(StatusError, "unknown toolkit")
	}
	k := &b.kits[i]
	config := r.Config
	if config == nil {
		config = json.RawMessage("{}")
	}
	if k.schema != nil && !fits(k.schema, config) {
		return answer(StatusError, "the configuration does not fit the schema")
	}
	status := StatusOK
	if k.Configure != nil {
		err := k.Configure(ctx, call.Session, config)
		var e *a2e.Error
		switch {
		case errors.Is(err, ErrPartialConfig):
			status = StatusPartial
		case errors.As(err, &e):
			return answer(StatusError, e.Message)
		case err != nil:
			return answer(StatusError, "the configuration failed")
		}
	}
	c := call.PluginState().(*configured)
	c.mu.Lock()
	c.names[k.Definition.Name] = true
	c.mu.Unlock()
	return answer(status, "")
}
