// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command altar lists and calls the tools of a Host, and serves a Host whose tools are commands
// or those of Runtimes that connect. Each verb has its own help: altar call -h.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/internal/command"
	"github.com/fivewire/fivewire/internal/retry"
)

func main() { program.Main() }

const (
	clientVariable  = "ALTAR_KEY"
	runtimeVariable = "ALTAR_RUNTIME_KEY"
)

var program = &command.Command{
	Name:    "altar",
	Summary: "Lists, calls and serves the tools of an ALTAR Host.",
	Verbs: []command.Verb{
		{
			Name: "tools", Arguments: "[flags] URL", Prepare: prepareTools,
			Summary:  "Lists the tools that can be called now.",
			Examples: "altar tools ws://localhost:8080\naltar tools -o json ws://localhost:8080",
		},
		{
			Name: "call", Arguments: "[flags] URL TOOL [PARAMETERS]", Prepare: prepareCall,
			Summary:  "Calls a tool with a JSON object, or that of standard input, and writes the result as JSON.",
			Examples: `altar call ws://localhost:8080 text/upper '{"text":"hello"}'` + "\n" + `altar call -stream ws://localhost:8080 text/words <parameters.json`,
		},
		{
			Name: "serve", Arguments: "-manifest FILE [flags]", Prepare: prepareServe,
			Summary: "Serves a Host with the contracts of a file.",
			Examples: "altar serve -manifest tools.json -exec 'text/upper=tr a-z A-Z' -allow-anonymous\n" +
				"ALTAR_KEY=... ALTAR_RUNTIME_KEY=... altar serve -manifest tools.json -addr :8443 -cert cert.pem -cert-key key.pem",
		},
	},
}

// closeTimeout bounds the end of a session at a Host that does not answer. A session outlives its calls by it,
// so that a late call ends with its own error.
const closeTimeout = 2 * time.Second

// startTime is how long a Host that has just been started may not accept connections.
const startTime = 2 * time.Second

// A caller holds the flags of verbs that call.
type caller struct {
	keyFile  string
	insecure bool
	timeout  time.Duration
}

func callerFlags(fs *flag.FlagSet) *caller {
	c := &caller{}
	fs.StringVar(&c.keyFile, "key-file", "", "`file` with the API key; without it, the variable "+clientVariable)
	fs.BoolVar(&c.insecure, "allow-insecure", false, "permit plain ws to other machines")
	fs.DurationVar(&c.timeout, "timeout", time.Minute, "longest time of a call")
	return c
}

// session runs f with a session, which it destroys.
func (c *caller) session(ctx context.Context, s *command.IO, url string, f func(*altar.Session) error) error {
	key, err := command.Secret(c.keyFile, clientVariable)
	if err != nil {
		return err
	}
	opts := &altar.WebSocketDialOptions{AllowInsecure: c.insecure, Header: http.Header{}}
	if key != "" {
		opts.Header.Set(altar.APIKeyHeader, key)
	}
	var isConnected atomic.Bool // once
	start := time.Now()
	client, err := altar.NewClient(func(ctx context.Context) (altar.Conn, error) {
		conn, err := altar.DialWebSocket(ctx, url, opts)
		switch {
		case err == nil:
			isConnected.Store(true)
		case !isConnected.Load() && retry.ClassOf(err) == retry.Unsent && time.Since(start) > startTime:
			err = retry.Mark(err, retry.Permanent, 0) // a wrong address rather than a restart
		}
		return conn, err
	}, &altar.ClientOptions{Retry: &altar.RetryPolicy{Max: time.Second}, Logger: slog.New(slog.NewTextHandler(s.Err, nil))})
	if err != nil {
		return command.Usage("%w", err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	session, err := client.CreateSession(ctx, &altar.CreateSessionParams{TTL: c.timeout + closeTimeout})
	if err != nil {
		return status(err)
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = session.Destroy(end) // it expires otherwise
	}()
	return status(f(session))
}

// status tells refusals of the Host, which are failures, from errors of the connection.
func status(err error) error {
	var refused *altar.Error
	if errors.As(err, &refused) {
		return err
	}
	return command.CouldNot(err)
}

func prepareTools(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	caller := callerFlags(fs)
	return func(ctx context.Context, s *command.IO, args []string) error {
		url, err := command.One(args, "the URL", false)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, caller.timeout)
		defer cancel()
		return caller.session(ctx, s, url, func(session *altar.Session) error {
			tools, err := session.ListTools(ctx)
			if err != nil {
				return err
			}
			for i := range tools {
				var parameters []string
				for _, p := range tools[i].Parameters {
					parameters = append(parameters, p.Name)
				}
				text := fmt.Sprintf("%s(%s): %s", tools[i].Name, strings.Join(parameters, ", "), tools[i].Description)
				if err := s.Print(text, &tools[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func prepareCall(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	caller := callerFlags(fs)
	isStream := fs.Bool("stream", false, "write each chunk of the result as it arrives")
	return func(ctx context.Context, s *command.IO, args []string) error {
		if len(args) < 2 || len(args) > 3 {
			return command.Usage("want URL, TOOL and at most one object")
		}
		var parameters []byte
		if len(args) == 3 {
			parameters = []byte(args[2])
		} else {
			var err error
			if parameters, err = s.Read(ctx, "-"); err != nil {
				return err
			}
		}
		if !json.Valid(parameters) {
			return command.Usage("the parameters are not JSON")
		}
		return caller.session(ctx, s, args[0], func(session *altar.Session) error {
			if !*isStream {
				result, err := session.Call(ctx, args[1], json.RawMessage(parameters), &altar.CallOptions{Timeout: caller.timeout})
				if err != nil {
					return err
				}
				return s.Print(string(result.Payload), result.Payload)
			}
			for chunk, err := range session.Stream(ctx, args[1], json.RawMessage(parameters), &altar.CallOptions{Timeout: caller.timeout}) {
				if err != nil {
					return err
				}
				if err := s.Print(string(chunk), chunk); err != nil {
					return err
				}
			}
			return nil
		})
	}
}
