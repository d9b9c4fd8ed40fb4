// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbridge

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"os/exec"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/mcp"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/option"
)

// Options adjusts a [Connector]. The zero value is right for production.
type Options struct {
	// Servers are servers within this process by their names in configurations, for the transport
	// "memory".
	Servers map[string]*sdk.Server

	// InheritedEnv names the variables of this process that children get in addition to those of
	// their configuration. Nil means the basic ones: PATH, HOME, USER, LOGNAME, SHELL, TERM and
	// similar variables.
	InheritedEnv []string

	// AllowLoopback and AllowPrivate let configurations name addresses of this
	// host and of private networks.
	AllowLoopback, AllowPrivate bool

	// MaxMessage bounds one message of a server in bytes, and its tools together. Zero means 4 MiB; a negative value
	// removes the bound.
	MaxMessage int

	// MaxItems bounds how many tools, resources or prompts of a server are
	// counted and, of tools, offered, and how many resources are subscribed to. Zero means 1000; a negative value removes
	// the bound.
	MaxItems int

	// DialTimeout bounds the time of connecting. Zero means 30 s; a negative value removes the bound.
	DialTimeout time.Duration

	// WriteTimeout is the maximum duration of one write to a child that does not read; then the
	// child is ended. Zero means 30 s; a negative value removes the bound.
	WriteTimeout time.Duration

	// ProtocolVersion is the first MCP version to negotiate. Empty means the latest one of the SDK,
	// which falls back to older versions.
	ProtocolVersion string

	// DisableSampling and DisableRoots keep servers from asking the agent for answers of
	// its model, and for the places where they may work.
	DisableSampling, DisableRoots bool

	// Logger receives the output of servers and failed connections, but never headers or
	// environments. Nil means slog.Default().
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
func NewConnector(opts *Options) (*Connector, error) {
	c := &Connector{}
	if opts != nil {
		c.opts = *opts
	}
	if c.opts.InheritedEnv == nil {
		c.opts.InheritedEnv = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "LANG",
			"SYSTEMROOT", "SYSTEMDRIVE", "TEMP", "TMP", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "PATHEXT", "COMSPEC"}
	}
	c.opts.MaxMessage = option.Count(c.opts.MaxMessage, 4<<20)
	c.opts.MaxItems = option.Count(c.opts.MaxItems, 1000)
	c.opts.DialTimeout = option.Duration(c.opts.DialTimeout, 30*time.Second)
	c.opts.WriteTimeout = option.Duration(c.opts.WriteTimeout, 30*time.Second)
	c.guard = &netguard.Guard{AllowLoopback: c.opts.AllowLoopback, AllowPrivate: c.opts.AllowPrivate}
	c.log = cmp.Or(c.opts.Logger, slog.Default())
	return c, nil
}

// Connect connects to the server of a configuration. With auto_reconnect a lost connection is
// replaced at the next use, with a delay of at least one second that grows with each failure.
func (c *Connector) Connect(ctx context.Context, s *a2e.Session, config *mcp.ServerConfig, notify func(method string, params json.RawMessage)) (mcp.Server, error) {
	srv := newServer(c, s, config, notify)
	if err := srv.open(ctx); err != nil {
		_ = srv.Close()
		return nil, err
	}
	return srv, nil
}

// transport returns the SDK's transport to a server. The returned function frees its resources.
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

// misfit reports an invalid member of a configuration.
func misfit(field string) error {
	e := a2e.Errorf(a2e.ErrSchemaViolation, "the configuration of the MCP server does not fit")
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
