// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"context"
	"fmt"
	"log"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/memory"
)

// An agent keeps notes at its host and searches them.
func ExampleOpen() {
	ctx := context.Background()
	memories, err := memory.NewPlugin(nil) // Options.Store keeps it after the end of the host
	if err != nil {
		log.Fatal(err)
	}
	host, err := a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{AllowAnonymous: true}})
	if err != nil {
		log.Fatal(err)
	}
	agentSide, hostSide := a2e.Pipe()
	go func() { _ = host.AddPlugin(memories).Serve(ctx, hostSide) }()
	agent, err := a2e.NewClient(agentSide, &a2e.ClientOptions{Capabilities: []string{memory.Capability}})
	if err != nil {
		log.Fatal(err)
	}
	defer agent.Close()
	if _, err := agent.Connect(ctx); err != nil {
		log.Fatal(err)
	}

	notes, err := memory.Open(ctx, agent, "notes")
	if err != nil {
		log.Fatal(err)
	}
	type topic struct {
		Topic string `json:"topic"`
	}
	err = notes.Remember(ctx, topic{"moon"}, "The moon is 384,400 km away.", &memory.RememberOptions{Tags: []string{"space"}})
	if err != nil {
		log.Fatal(err)
	}
	found, err := notes.Search(ctx, "how moon", 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(found), "entries match all words")
	if found, err = notes.Search(ctx, "MOON away", 0, "space"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(found[0].Content))
	n, err := notes.Forget(ctx, "", topic{"moon"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(n, "removed")
	// Output:
	// 0 entries match all words
	// "The moon is 384,400 km away."
	// 1 removed
}
