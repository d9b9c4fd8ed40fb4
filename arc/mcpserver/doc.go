// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package mcpserver serves agents of an arc.Server to clients of the Model Context Protocol over streamable HTTP,
// with the official Go SDK.
//
// # Usage
//
//	engine, err := arc.NewServer(&arc.ServerOptions{Auth: auth, Persistence: arc.Persistence{Store: db}})
//	engine.HandleTasks("worker-01", handler)
//	tools, err := mcpserver.NewHandler(engine, []arc.AgentInfo{{AgentID: "worker-01", Description: "Works."}}, nil)
//	http.Handle("/mcp", tools)
//
// # Security
//
// Each request is authenticated by its header before its body is read, and its body has a share in the budget of the
// arc.Server, whose Authenticator, scopes, Authorizer, limits, middleware, audit and origins apply. A task belongs to
// the principal of its token. JSON with duplicate members or invalid UTF-8 is refused.
//
// # State
//
// A call is one task of the arc.Server, in its store: any process that shares the store serves it, and a restart of
// a process does not end it. A call with its taskId waits for it, answers it or cancels it, and never makes a second
// task. The end of the HTTP request cancels a task whose id its caller has not received. The result of a call
// depends on the client:
//
//   - A client with the extension io.modelcontextprotocol/tasks gets a task of MCP after TaskDelay. Its id is that of
//     the task; tasks/get, tasks/update and tasks/cancel are task.info, task.send and task.cancel. A poll of a working
//     task is one read of the store.
//   - A client that shows forms gets a question as an input request. Its repeated call, or tasks/update, gives the
//     answer to the same task; a declined question cancels it.
//   - Others get the task when it has ended or asks a question, and after MaxWait or at the end of the process in any
//     case.
//
// # Conformance
//
// MCP 2026-07-28, stateless, and the older versions that the SDK speaks. Each agent is a tool with an output
// schema. Messages of the agent are progress notifications. A failed task and a refusal have isError, and a
// refusal names the path of each invalid argument. Images, audio and files of artifacts are content of their kind, and
// have no content in the structured result. Numbers are exact, except in the form of an answer. Notifications
// of tasks, which the SDK has no subscription for, and chats are not implemented.
//
// # Deviations
//
// None.
package mcpserver
