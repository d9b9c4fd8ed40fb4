// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conversation_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/arc/conversation"
)

func ExampleManager() {
	srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}})
	if err != nil {
		panic(err)
	}
	defer srv.Close()
	srv.HandleChats("tutor-01", arctest.EchoChat())
	ts := httptest.NewServer(srv)
	defer ts.Close()
	c, err := arc.NewClient(ts.URL+"/arc", "planner-01", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	ctx := context.Background()
	chats, err := conversation.NewManager(c, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Close()
	for _, text := range []string{"one", "two"} { // two messages of one chat
		answer, err := chats.Send(ctx, "tutor-01", arc.UserText(text), nil)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(answer.Message.Text())
	}
	if err := chats.Close(ctx); err != nil { // ends the chat
		log.Fatal(err)
	}
	// Output:
	// one
	// two
}
