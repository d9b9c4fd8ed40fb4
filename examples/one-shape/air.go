// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
)

// An airNetwork is a registry in this program, where both agents have their keys, and a relay, where the
// caller has its mail. A push has no result, so the answer is a second envelope.
type airNetwork struct {
	*airtest.Network
	words *air.Identity
}

// A textBody is the body of the envelopes of both types.
type textBody struct {
	Type  string `json:"type"`
	Text  string `json:"text,omitempty"`
	Words int    `json:"words"`
}

var bodyTypes = []string{"text", "word-count"}

func (n *airNetwork) serve(url string, logger *slog.Logger) (_ *server, err error) {
	if n.Network, err = airtest.NewNetwork(nil); err != nil {
		return nil, err
	}
	if n.words, err = air.GenerateIdentity(airtest.DID("AIR-W0RD-0000-0001")); err != nil {
		return nil, err
	}
	n.Registry.Register(n.words, url+"/")
	resolver, err := n.Resolver()
	if err != nil {
		return nil, err
	}
	client, err := air.NewClient(n.words, &air.ClientOptions{Resolver: resolver, BodyTypes: bodyTypes, Logger: logger})
	if err != nil {
		return nil, err
	}
	inbox, err := air.NewInbox(n.words, air.HandlerFunc(func(ctx context.Context, d *air.Delivery) error {
		var in textBody
		if err := json.Unmarshal(d.BodyJSON, &in); err != nil {
			return err
		}
		return send(ctx, client, d.Envelope.From, textBody{Type: "word-count", Words: countWords(in.Text)})
	}), &air.InboxOptions{
		Resolver:  resolver,
		BodyTypes: bodyTypes,
		Logger:    logger,
		Audit:     air.AuditLog(logger),
	})
	if err != nil {
		return nil, err
	}
	shutdown := func(ctx context.Context) error {
		defer n.Close()
		return inbox.Shutdown(ctx)
	}
	return &server{inbox, inbox.Ready, shutdown}, nil
}

func (n *airNetwork) call(ctx context.Context, _, text string) (answer string, err error) {
	you, err := n.RegisterAgent("AIR-Y0U0-0000-0002")
	if err != nil {
		return "", err
	}
	resolver, err := n.Resolver()
	if err != nil {
		return "", err
	}
	client, err := air.NewClient(you, &air.ClientOptions{Resolver: resolver, BodyTypes: bodyTypes})
	if err != nil {
		return "", err
	}
	inbox, err := air.NewInbox(you, air.HandlerFunc(func(_ context.Context, d *air.Delivery) error {
		var out textBody
		err := json.Unmarshal(d.BodyJSON, &out)
		answer = strconv.Itoa(out.Words) + " words"
		return err
	}), &air.InboxOptions{Resolver: resolver, BodyTypes: bodyTypes})
	if err != nil {
		return "", err
	}
	mail, err := air.NewPoller(inbox, n.Endpoint(you), &air.PollerOptions{AllowLoopback: true})
	if err != nil {
		return "", err
	}
	if err := send(ctx, client, n.words.DID(), textBody{Type: "text", Text: text}); err != nil {
		return "", err
	}
	_, err = mail.Drain(ctx)
	return answer, errors.Join(err, inbox.Shutdown(ctx))
}

func send(ctx context.Context, client *air.Client, to string, body textBody) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	_, err = client.Send(ctx, &air.Draft{To: to, Body: &air.Raw{Type: body.Type, JSON: data}}, nil)
	return err
}
