// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command accp-server runs an agent that answers ACCP frames over HTTP and WebSocket:
// it chats, has tools, streams, takes transactions each once, and brings a schema of
// its own. It is a template to copy.
//
//	go run ./examples/accp-server -addr localhost:8080
//	go run ./examples/accp-server -try
//
// It ends on Ctrl-C or SIGTERM: new frames are refused, what is running may finish.
// With -try a client in the same program talks to it, prints what it hears, and that
// is the end.
package main

import (
	"context"
	"crypto/subtle"
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
	"github.com/fivewire/fivewire/store"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "accp-server:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("accp-server", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "localhost:8080", "`address` to listen on")
	token := flags.String("token", "", "access `token` that callers must send; empty lets everyone in")
	grace := flags.Duration("grace", 20*time.Second, "how long running work may go on after a signal")
	try := flags.Bool("try", false, "listen on any port, let a client talk to the agent, and end")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *try {
		*addr = "localhost:0"
	}
	logger := slog.New(slog.NewTextHandler(stderr, nil))

	agent, err := newAgent(logger)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	url := "http://" + l.Addr().String()
	logger.Info("serving ACCP", "url", url+accp.FramesPath)

	// In production this server stands behind TLS: ServeTLS, or a proxy.
	web := &http.Server{Handler: guard(agent, *token), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- web.Serve(l) }()
	defer func() {
		logger.Info("shutting down")
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), *grace)
		defer cancel()
		// The agent's work first: it ends the WebSocket connections too.
		err = errors.Join(err, agent.Close(end), web.Shutdown(end))
	}()
	if *try {
		return talk(ctx, stdout, url, *token)
	}
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		return nil
	}
}

// A report is a structure with a schema of its own: the tags give its keys, short
// forms and defaults.
type report struct {
	Region string `accp:"region,abbr=rg"`
	Total  string `accp:"total,dec,abbr=tt"`
	Unit   string `accp:"unit,default=EUR"`
}

// newAgent returns the agent, ready to serve.
func newAgent(logger *slog.Logger) (*accp.Server, error) {
	registry := accp.NewRegistry()
	schema, err := accp.SchemaOf("region_report", "RR", 1, report{})
	if err != nil {
		return nil, err
	}
	if err := registry.Register(schema); err != nil {
		return nil, err
	}
	agent, err := accp.NewServer("desk", &accp.ServerOptions{
		Logger: logger,
		Session: accp.SessionOptions{
			Registry:  registry,          // callers learn it when they say hello
			Store:     store.NewMemory(), // a durable engine keeps context over restarts
			OnWarning: warn(logger),      // such as a currency that nobody knows
		},
		Auth: accp.Auth{Authorizer: func(r *http.Request, sid string) error {
			// A session id is a name and no secret. With many callers, check here that
			// the one that guard has found may use it.
			if len(sid) > 64 {
				return errors.New("session id too long")
			}
			return nil
		}},
	})
	if err != nil {
		return nil, err
	}
	agent.HandleFunc(accp.IntentReq, accp.OpChat, chat)
	agent.HandleFunc(accp.IntentReq, accp.OpGenerate, generate)
	agent.HandleFunc(accp.IntentQry, accp.OpLookup, lookUp)
	agent.Handle(accp.IntentReq, accp.OpTransaction, &ledger{done: store.NewMemory()})
	agent.Handle(accp.IntentReq, accp.OpTool, accp.NewToolHandler(map[string]accp.ToolFunc{"count_words": countWords}))
	return agent, nil
}

func warn(logger *slog.Logger) func(*accp.Message, string) {
	return func(m *accp.Message, what string) { logger.Warn(what, "from", m.From, "op", m.Op) }
}

// chat answers one message of a conversation.
func chat(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
	var in accp.Chat
	if err := accp.Unmarshal(m.Params, &in); err != nil {
		return err
	}
	out, err := accp.NewMessage(accp.IntentDone, m.Op, accp.SchemaChat, accp.Chat{Content: "You said: " + in.Content, Turn: in.Turn + 1})
	if err != nil {
		return err
	}
	return w.Send(out)
}

// generate streams its answer. Each chunk is on its way when Send returns, and the
// context ends when the caller has gone or has cancelled.
func generate(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
	words := strings.Fields(m.Params.Text("data"))
	if len(words) == 0 {
		return accp.ErrInvalidType // a code goes to the caller as it is
	}
	for i, word := range words {
		if err := ctx.Err(); err != nil {
			return err
		}
		chunk, err := accp.NewMessage(accp.IntentStream, m.Op, accp.SchemaStream, accp.Chunk{
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

// lookUp answers in the agent's own schema.
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
		return accp.Null(), accp.ErrToolSchema
	}
	return accp.Int(int64(len(strings.Fields(s)))), nil
}

// A ledger books each transaction once, however often it is sent: its id is the
// same when it is sent again.
type ledger struct{ done store.KV }

func (l *ledger) ServeACCP(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
	var tx accp.Transaction
	if err := accp.Unmarshal(m.Params, &tx); err != nil {
		return err
	}
	if tx.ID == "" || tx.Amount == "" {
		return accp.ErrInvalidType
	}
	status := "booked"
	_, err := l.done.Create(ctx, "tx/"+tx.ID, []byte(tx.Amount), 0)
	switch {
	case errors.Is(err, store.ErrExists):
		booked, err := l.done.Get(ctx, "tx/"+tx.ID)
		if err != nil {
			return err
		}
		if string(booked.Value) != tx.Amount {
			return accp.ErrPolicyDenied // another transaction under the same id
		}
		status = "booked_before"
	case err != nil:
		return err // the caller learns of an internal error, the log of this one
	}
	tx.Status = status
	out, err := accp.NewMessage(accp.IntentDone, m.Op, accp.SchemaTransaction, tx)
	if err != nil {
		return err
	}
	return w.Send(out)
}

// guard lets those in who have the token. Authentication is the transport's affair:
// any middleware for net/http will do.
func guard(next http.Handler, token string) http.Handler {
	if token == "" {
		return next
	}
	want := []byte("Bearer " + token)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
