// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command accp-server runs an agent that answers ACCP frames over HTTP and WebSocket: it chats, has
// tools, streams, books each transaction once, and has a custom schema. It is a template to copy.
//
//	go run ./examples/accp-server -addr localhost:8080
//	go run ./examples/accp-server -try
//
// It ends on Ctrl-C or SIGTERM: new frames are refused, running handlers may finish. With -try, a
// client in the same program calls the agent, prints the answers, and exits.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/store"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "accp-server:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("accp-server", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "localhost:8080", "`address` to listen on")
	tokenFile := flags.String("token-file", "", "`file` with the access token that callers must send; without it every caller is served")
	grace := flags.Duration("grace", 20*time.Second, "how long running work may go on after a signal")
	try := flags.Bool("try", false, "listen on any port, let a client talk to the agent, and end")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *try {
		*addr = "localhost:0"
	}
	logger := slog.New(slog.NewTextHandler(stderr, nil))

	token, err := readToken(*tokenFile)
	if err != nil {
		return err
	}
	agent, err := newAgent(logger, token)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	url := "http://" + l.Addr().String()
	logger.InfoContext(ctx, "serving ACCP", "url", url+accp.FramesPath)

	// In production, serve TLS with ServeTLS, or behind a proxy.
	web := &http.Server{Handler: agent, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- web.Serve(l) }()
	defer func() {
		logger.InfoContext(ctx, "shutting down")
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), *grace)
		defer cancel()
		// The agent first: it also closes the WebSocket connections.
		err = errors.Join(err, agent.Shutdown(end), web.Shutdown(end))
	}()
	if *try {
		return talk(ctx, stdout, url, token)
	}
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		return nil
	}
}

// readToken returns the token in a file, and none without a file. Other users of the machine would see a token among the arguments.
func readToken(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	token := strings.TrimSpace(string(text))
	if err == nil && token == "" {
		err = fmt.Errorf("%s: want a token", file)
	}
	return token, err
}

// A report is a structure with a custom schema: the tags define its keys, short forms and defaults.
type report struct {
	Region string `json:"region" accp:"abbr=rg"`
	Total  string `json:"total" accp:"dec,abbr=tt"`
	Unit   string `json:"unit" accp:"default=EUR"`
}

// newAgent returns the agent, ready to serve.
func newAgent(logger *slog.Logger, token string) (*accp.Server, error) {
	registry := accp.NewRegistry()
	schema, err := accp.SchemaOf("region_report", "RR", 1, report{})
	if err != nil {
		return nil, err
	}
	if err := registry.Register(schema); err != nil {
		return nil, err
	}
	auth := accp.Auth{AllowAnonymous: token == "", Authorizer: accp.AuthorizerFunc(authorize)}
	if token != "" {
		if auth.Authenticator, err = accp.APIKeyAuthenticator(map[string]*accp.Principal{token: {ID: "visitor"}}); err != nil {
			return nil, err
		}
	}
	agent, err := accp.NewServer("desk", &accp.ServerOptions{
		Logger: logger,
		Session: accp.SessionOptions{
			Registry:  registry,     // callers receive it when they synchronize
			OnWarning: warn(logger), // such as an invalid currency
		},
		Persistence: accp.Persistence{Store: store.NewMemory()}, // a durable engine keeps context over restarts
		Auth:        auth,
	})
	if err != nil {
		return nil, err
	}
	agent.Handle(accp.IntentReq, profile.OpChat, accp.HandlerFunc(chat))
	agent.Handle(accp.IntentReq, profile.OpGenerate, accp.HandlerFunc(generate))
	agent.Handle(accp.IntentQry, profile.OpLookup, accp.HandlerFunc(lookUp))
	agent.Handle(accp.IntentReq, profile.OpTransaction, accp.HandlerFunc(book))
	agent.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{"count_words": countWords}))
	return agent, nil
}

// authorize decides about a message. A session id is a name and not a secret: with several callers,
// check here that accp.PrincipalFromContext may use it.
func authorize(_ context.Context, m *accp.Message) error {
	if len(m.Meta.SID) > 64 {
		return errors.New("session id too long")
	}
	return nil
}

func warn(logger *slog.Logger) func(*accp.Message, string) {
	return func(m *accp.Message, what string) {
		logger.WarnContext(context.Background(), what, "from", m.From, "op", m.Op)
	}
}

// chat answers one message of a conversation.
func chat(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
	var in profile.Chat
	if err := accp.Unmarshal(m.Params, &in); err != nil {
		return err
	}
	out, err := accp.NewMessage(accp.IntentDone, m.Op, profile.SchemaChat, profile.Chat{Content: "You said: " + in.Content, Turn: in.Turn + 1})
	if err != nil {
		return err
	}
	return w.Send(out)
}

// generate streams its answer. Each chunk is sent when Send returns, and the context ends when the
// caller disconnects or cancels.
func generate(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
	words := strings.Fields(m.Params.Text("data"))
	if len(words) == 0 {
		return accp.ErrInvalidType // the code is sent to the caller
	}
	for i, word := range words {
		if err := ctx.Err(); err != nil {
			return err
		}
		chunk, err := accp.NewMessage(accp.IntentStream, m.Op, profile.SchemaStream, profile.Chunk{
			Index: int64(i), Data: accp.String(word), Final: i == len(words)-1,
		})
		if err != nil {
			return err
		}
		if err := w.Send(chunk); err != nil {
			return err
		}
	}
	return nil
}

// lookUp answers with the custom schema.
func lookUp(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
	out, err := accp.NewMessage(accp.IntentDone, m.Op, "RR", report{Region: m.Params.Text("query"), Total: "1234567.50", Unit: "EUR"})
	if err != nil {
		return err
	}
	return w.Send(out)
}

// countWords is a tool.
func countWords(_ context.Context, args accp.Params) (accp.Value, error) {
	text, ok := args.Get("text")
	s, isText := text.Text()
	if !ok || !isText {
		return accp.Value{}, accp.ErrToolSchema
	}
	return accp.Int(int64(len(strings.Fields(s)))), nil
}

// book books a transaction. The server runs it once: a repetition under the same transaction id receives the
// outcome of the first run.
func book(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
	var tx profile.Transaction
	if err := accp.Unmarshal(m.Params, &tx); err != nil {
		return err
	}
	if tx.ID == "" || tx.Amount == "" {
		return accp.ErrInvalidType
	}
	tx.Status = "booked"
	out, err := accp.NewMessage(accp.IntentDone, m.Op, profile.SchemaTransaction, tx)
	if err != nil {
		return err
	}
	return w.Send(out)
}
