// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
)

// A step is one message of the workflow, in natural language and as params.
type step struct {
	from, to string
	intent   accp.Intent
	op       string
	params   accp.Params
	text     string

	state accp.Params // instead of params: what the shared state is now
	reads []string    // params whose text the receiver needs, wherever it is kept
}

// json returns the step as compact JSON with full names, as agents send it today. A
// text that an earlier message holds is not repeated: the history is sent anyway.
func (s *step) json() (string, error) {
	params := s.params
	if s.state != nil {
		params = accp.Params{{Key: "state", Value: accp.Map(s.state...)}}
	}
	for _, key := range s.reads {
		params = slices.Clone(params).Set(key, accp.String("see above"))
	}
	return messageJSON(&accp.Message{From: s.from, Intent: s.intent, Op: s.op, Params: params})
}

// messageJSON returns a message as compact JSON. A reference is a string.
func messageJSON(m *accp.Message) (string, error) {
	params := slices.Clone(m.Params)
	for i, p := range params {
		if ref, ok := p.Value.Ref(); ok {
			params[i].Value = accp.String("$" + ref)
		}
	}
	if m.Op == profile.OpState {
		params = slices.DeleteFunc(params, func(p accp.Param) bool { return p.Key == "base" }) // only frames need the digest
	}
	payload, err := accp.Map(params...).AppendJSON(nil)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(`{"from":%q,"type":%q,"operation":%q,"payload":%s}`, m.From, m.Intent, m.Op, payload), nil
}

// short returns the text of the step with the references of its message in place of long texts.
func (s *step) short(m *accp.Message) string {
	text := s.text
	for _, p := range s.params {
		long, _ := p.Value.Text()
		v, _ := m.Params.Get(p.Key)
		if ref, ok := v.Ref(); ok {
			text = strings.ReplaceAll(text, long, "$"+ref)
		}
	}
	return text
}

func str(key, value string) accp.Param { return accp.Param{Key: key, Value: accp.String(value)} }

func list(key string, values ...string) accp.Param {
	var out []accp.Value
	for _, v := range values {
		out = append(out, accp.String(v))
	}
	return accp.Param{Key: key, Value: accp.Array(out...)}
}

// The table that the research agent finds. Text and JSON carry it along from
// then on; in frames it is a reference.
const tableText = `segment; revenue Q2; revenue Q3; change; churn Q2; churn Q3
enterprise, north; 4.812; 3.901; -18.9 %; 2.1 %; 4.4 %
enterprise, south; 3.377; 2.815; -16.6 %; 1.9 %; 4.0 %
mid market, north; 2.204; 2.190; -0.6 %; 3.3 %; 3.6 %
mid market, south; 1.918; 1.944; +1.4 %; 3.0 %; 3.1 %
small business, north; 1.105; 1.157; +4.7 %; 5.2 %; 5.0 %
small business, south; 0.998; 1.031; +3.3 %; 5.6 %; 5.5 %
public sector; 0.871; 0.803; -7.8 %; 0.4 %; 0.4 %
excluded: r118, r119, r204 (no revenue value)`

const summaryText = `Revenue in the third quarter was 12 percent below the second. Nearly all of the decline comes from the enterprise segment, ` +
	`which lost 17.1 percent and where churn has doubled to more than four percent; all other segments together are stable, and small ` +
	`business has grown by four percent. Three records without revenue values are not included. We recommend that the account teams of ` +
	`the enterprise segment speak to each customer who left, and to report what they hear before the end of the month.`

// progress is the shared state: finished work and the next step.
func progress(analysis, validation, summary, review, owner string) accp.Params {
	return accp.Params{
		str("project", "q3_report"), str("deadline", "friday"), str("audience", "board"), str("risk", "low"),
		str("analysis", analysis), str("validation", validation), str("summary", summary), str("review", review), str("owner", owner),
	}
}

const stateText = "Here is the state of the project, the Q3 report for the board, which is due on Friday and whose risk is low. "

func workflow() []step {
	sync := func(text string, state accp.Params) step {
		return step{from: "planner", to: "research", intent: accp.IntentSync, op: profile.OpState, state: state, text: stateText + text}
	}
	return []step{
		sync("Analysis, validation, summary and review are all still open, and the planner is in charge.",
			progress("open", "open", "open", "open", "planner")),
		{from: "planner", to: "research", intent: accp.IntentReq, op: profile.OpAnalyze,
			params: accp.Params{str("data", "crm_export_q3"), list("scope", "revenue", "churn", "segments"), str("against", "q2"),
				str("format", "table"), str("priority", "high"), str("temporal_constraint", "2d"), str("target", "research")},
			text: "Research agent, please analyse the Q3 export from our CRM system. I need revenue, customer churn and the individual market segments, " +
				"all of them compared with the second quarter, as a table. This has a high priority, because the board meets in two days. " +
				"Please do not repair missing data on your own, but ask me."},
		{from: "research", to: "planner", intent: accp.IntentWait, op: profile.OpAnalyze,
			params: accp.Params{str("reason", "missing_revenue"), list("rows", "r118", "r119", "r204"), str("destination", "planner")},
			text: "I have started with the analysis of the Q3 export, and noticed that the records r118, r119 and r204 have no revenue value. " +
				"Shall I leave them out, or wait until the data owner has delivered the values?"},
		{from: "planner", to: "research", intent: accp.IntentReq, op: profile.OpAnalyze,
			params: accp.Params{str("decision", "skip_rows"), str("note", "flag_in_report"), str("target", "research")},
			text: "Thank you for checking so carefully. The values will not be there before next week, so please leave the three records out, add a note " +
				"to the report that says so, and go on with the analysis as it was requested."},
		{from: "research", to: "planner", intent: accp.IntentDone, op: profile.OpAnalyze,
			params: accp.Params{{Key: "findings", Value: accp.Map(str("revenue", "-12%"), str("churn", "+3.2%"), str("enterprise", "-18%"), str("small_business", "+4%"),
				accp.Param{Key: "skipped", Value: accp.Int(3)})}, str("next_action", "analyst/validate"), str("table", tableText)},
			text: "I have completed the analysis. Revenue has gone down by 12 percent, churn has gone up by 3.2 percent, the enterprise segment has lost 18 percent " +
				"and drives the decline, while small business has grown by 4 percent. Three records are left out as agreed. I suggest that the analyst " +
				"validates these numbers next. This is the table:\n" + tableText},
		sync("The analysis is done now, validation, summary and review are still open, and the analyst is in charge.",
			progress("done", "open", "open", "open", "analyst")),
		{from: "planner", to: "analyst", intent: accp.IntentReq, op: profile.OpValidate, reads: []string{"table"},
			params: accp.Params{str("against", "finance_ledger"), str("tolerance", "0.5%"), str("target", "analyst"), str("table", tableText)},
			text: "Analyst agent, please compare the numbers in the table of the research agent with the finance ledger. Differences of up to half a percent " +
				"are acceptable. Report every larger one, with an explanation if you find one."},
		{from: "analyst", to: "planner", intent: accp.IntentDone, op: profile.OpValidate,
			params: accp.Params{list("ok", "revenue", "churn", "small_business"), {Key: "diff", Value: accp.Map(str("enterprise", "-17.1%"))},
				str("cause", "late_invoice_i88"), str("next_action", "writer/summarize")},
			text: "I have compared the numbers with the finance ledger. Revenue, churn and small business agree. The enterprise segment has lost 17.1 percent and " +
				"not 18 percent; the cause is the late invoice i88, which is booked in the ledger but missing in the export. The writer can go on with that."},
		sync("Analysis and validation are done now, summary and review are still open, and the writer is in charge.",
			progress("done", "done", "open", "open", "writer")),
		{from: "planner", to: "writer", intent: accp.IntentReq, op: profile.OpSummarize, reads: []string{"table"},
			params: accp.Params{str("length", "100_words"), {Key: "fix", Value: accp.Map(str("enterprise", "-17.1%"))}, str("note", "3_rows_skipped"),
				str("target", "writer"), str("table", tableText)},
			text: "Writer agent, please write a summary of about a hundred words for the board. Use the table of the research agent, but with the corrected value of " +
				"minus 17.1 percent for the enterprise segment, and mention that three records are left out."},
		{from: "writer", to: "planner", intent: accp.IntentDone, op: profile.OpSummarize,
			params: accp.Params{{Key: "words", Value: accp.Int(91)}, str("next_action", "reviewer/review"), str("result", summaryText)},
			text:   "The summary is written, and has 91 words. The reviewer should look at it before it goes out. This is the text:\n" + summaryText},
		{from: "planner", to: "reviewer", intent: accp.IntentReq, op: profile.OpReview, reads: []string{"result"},
			params: accp.Params{list("check", "numbers", "tone", "note"), str("target", "reviewer"), str("result", summaryText)},
			text: "Reviewer agent, please check the summary of the writer: are the numbers those that were validated, is the tone right for the board, and is the note " +
				"about the missing records there?"},
		{from: "reviewer", to: "planner", intent: accp.IntentDone, op: profile.OpReview,
			params: accp.Params{{Key: "numbers", Value: accp.Bool(true)}, {Key: "tone", Value: accp.Bool(true)}, {Key: "note", Value: accp.Bool(true)}, str("verdict", "approved")},
			text:   "I have checked the summary. The numbers are right, the tone fits the board, and the note about the missing records is there. It is approved."},
		sync("Everything is done, and the planner is in charge of sending the report.", progress("done", "done", "done", "done", "planner")),
	}
}
