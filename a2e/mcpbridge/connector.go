// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbridge

import (
	"context"
	"encoding/json"
	"log/slog"
	"os/exec"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/mcp"
	"github.com/fivewire/fivewire/internal/netguard"
)

// Options adjusts a [Connector]. The zero value is right for production.
type Options struct {
	// Servers are servers within this process, for the transport "memory", by
	// the names that configurations give them.
	Servers map[string]*sdk.Server

	// InheritedEnv names the variables of this process that children get beside
	// those of their configuration. Nil means what they need to run at all:
	// PATH, HOME, USER, LOGNAME, SHELL, TERM and their like.
	InheritedEnv []string

	// AllowLoopback and AllowPrivate let configurations name addresses of this
	// host and of private networks.
	AllowLoopback, AllowPrivate bool

	// MaxMessage bounds one message of a server in bytes. Zero means 4 MiB.
	MaxMessage int

	// MaxItems bounds how many tools, resources or prompts of a server are
	// counted and, of tools, offered. Zero means 1000.
	MaxItems int

	// DialTimeout bounds how long connecting may take. Zero means 30 seconds.
	DialTimeout time.Duration

	// WriteTimeout cuts a child off that takes nothing for so long. Zero means
	// 30 seconds.
	WriteTimeout time.Duration

	// ProtocolVersion is the MCP version to begin with. Empty means the latest
	// one of the SDK, which falls back by itself.
	ProtocolVersion string

	// DisableSampling and NoRoots keep servers from asking the agent for answers of
	// its model, and for the places where they may work.
	DisableSampling, DisableRoots bool

	// Logger receives what servers print and why connections fail. Nil is
	// silent. It never gets headers or environments.
	Logger *slog.Logger
}

// A Connector connects to MCP servers. It is a [mcp.Connector] and may be used by
// several goroutines.
type Connector struct {
	opts  Options
	guard *netguard.Guard
	log   *slog.Logger
}

var _ mcp.Connector = (*Connector)(nil)

// NewConnector returns a connector. It does no I/O.
func NewConnector(opts *Options) *Connector {
	c := &Connector{}
	if opts != nil {
		c.opts = *opts
	}
	if c.opts.InheritedEnv == nil {
		c.opts.InheritedEnv = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "LANG",
			"SYSTEMROOT", "SYSTEMDRIVE", "TEMP", "TMP", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "PATHEXT", "COMSPEC"}
	}
	if c.opts.MaxMessage <= 0 {
		c.opts.MaxMessage = 4 << 20
	}
	if c.opts.MaxItems <= 0 {
		c.opts.MaxItems = 1000
	}
	if c.opts.DialTimeout <= 0 {
		c.opts.DialTimeout = 30 * time.Second
	}
	if c.opts.WriteTimeout <= 0 {
		c.opts.WriteTimeout = 30 * time.Second
	}
	c.guard = &netguard.Guard{AllowLoopback: c.opts.AllowLoopback, AllowPrivate: c.opts.AllowPrivate}
	c.log = c.opts.Logger
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Connect connects to the server of a configuration. With auto_reconnect the
// connection is made again when it is needed after it was lost, at most once a
// second and less often the longer it fails.
func (c *Connector) Connect(ctx context.Context, s *a2e.Session, config *mcp.ServerConfig, notify func(method string, params json.RawMessage)) (mcp.Server, error) {
	srv := newServer(c, s, config, notify)
	if err := srv.open(ctx); err != nil {
		_ = srv.Close()
		return nil, err
	}
	return srv, nil
}

// transport makes what the SDK needs to reach a server. The returned function
// frees what the SDK does not.
func (c *Connector) transport(config *mcp.ServerConfig) (t sdk.Transport, free func(), err error) {
	switch config.Transport {
	case "stdio":
		if len(config.Cmd) == 0 {
			return nil, nil, misfit("config.cmd")
		}
		cmd := exec.Command(config.Cmd[0], config.Cmd[1:]...)
		cmd.Dir, cmd.Env = config.Cwd, c.environment(config)
		child, err := startChild(cmd, c)
		if err != nil {
			return nil, nil, err
		}
		return &sdk.IOTransport{Reader: child.out, Writer: child, MaxLineLength: c.opts.MaxMessage + 1}, func() { _ = child.Close() }, nil
	case "http", "streamable_http", "streamable-http":
		client, err := c.httpClient(config)
		if err != nil {
			return nil, nil, err
		}
		return &sdk.StreamableClientTransport{Endpoint: config.URL, HTTPClient: client, MaxEventSize: c.opts.MaxMessage},
			client.CloseIdleConnections, nil
	case "sse":
		client, err := c.httpClient(config)
		if err != nil {
			return nil, nil, err
		}
		return &sdk.SSEClientTransport{Endpoint: config.URL, HTTPClient: client, MaxEventSize: c.opts.MaxMessage},
			client.CloseIdleConnections, nil
	case "memory":
		local := c.opts.Servers[config.Name]
		if local == nil {
			return nil, nil, misfit("config.name")
		}
		return &localTransport{server: local}, func() {}, nil
	}
	return nil, nil, misfit("config.transport")
}

// misfit reports a member of a configuration that nothing can be made of.
func misfit(field string) error {
	e := a2e.NewError(a2e.ErrSchemaViolation, "the configuration of the MCP server does not fit")
	e.Field, e.Reason = field, a2e.ReasonValue
	return e
}

// A localTransport connects to a server of this process.
type localTransport struct{ server *sdk.Server }

// Connect connects the server to the other end of a pipe.
func (t *localTransport) Connect(ctx context.Context) (sdk.Connection, error) {
	here, there := sdk.NewInMemoryTransports()
	// The session of the server ends with the connection, not with ctx.
	if _, err := t.server.Connect(context.WithoutCancel(ctx), there, nil); err != nil {
		return nil, err
	}
	return here.Connect(ctx)
}
