// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arctest_test

import (
	"context"
	"fmt"
	"log"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
)

// The agent under test calls a server whose agent follows a script, without a
// network.
func ExampleScriptedTask() {
	srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}})
	if err != nil {
		panic(err)
	}
	defer srv.Close()
	finished := make(chan struct{})
	srv.HandleTasks("painter-01", arctest.ScriptedTask(
		arctest.AddMessage("mixing red"),
		arctest.AddArtifact("picture", "a red house"),
		func(ctx context.Context, run *arc.TaskRun) error {
			task, err := run.Task(ctx)
			if err != nil {
				return err
			}
			fmt.Println(task.Messages[0].Text(), "->", task.Messages[1].Text(), "->", task.Artifacts[0].Parts[0].Content)
			close(finished)
			return nil
		}))
	answer := srv.ServeMessage(context.Background(), &arc.ServerRequest{Data: []byte(`{"arc":"1.0","id":"1","method":"task.create",
		"requestAgent":"tester-01","targetAgent":"painter-01",
		"params":{"initialMessage":{"role":"user","parts":[{"type":"TextPart","content":"a house, please"}]}}}`)}, nil)
	if answer.Error != nil {
		log.Fatal(answer.Error)
	}
	<-finished
	// Output: a house, please -> mixing red -> a red house
}
