// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abridge_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/a2abridge"
)

// An ARC agent and a client of the A2A SDK, which finds it by its card.
func Example() {
	engine, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	engine.HandleTasks("upper-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
		return run.AddArtifact(ctx, &arc.Artifact{Parts: []arc.Part{arc.TextPart(strings.ToUpper(run.Message().Text()))}})
	}))
	bridge, err := a2abridge.NewServer(engine, "upper-01", nil)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	defer server.Close()
	mux.Handle("/a2a", bridge.JSONRPCHandler())
	card, err := a2abridge.NewCard(arc.AgentInfo{Name: "Upper"}, server.URL+"/a2a", "")
	if err != nil {
		log.Fatal(err)
	}
	mux.Handle(a2asrv.WellKnownAgentCardPath, a2asrv.NewStaticAgentCardHandler(card))

	ctx := context.Background()
	found, err := agentcard.DefaultResolver.Resolve(ctx, server.URL)
	if err != nil {
		log.Fatal(err)
	}
	client, err := a2aclient.NewFromCard(ctx, found, a2aclient.WithJSONRPCTransport(server.Client()))
	if err != nil {
		log.Fatal(err)
	}
	res, err := client.SendMessage(ctx, &a2a.SendMessageRequest{Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("hello"))})
	if err != nil {
		log.Fatal(err)
	}
	task := res.(*a2a.Task)
	fmt.Println(task.Status.State, task.Artifacts[0].Parts[0].Text())
	// Output: TASK_STATE_COMPLETED HELLO
}
