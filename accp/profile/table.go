// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"slices"

	"github.com/fivewire/fivewire/accp"
)

// TableSchema returns the schema of [TableOf]. Register it on the side that sends the first table; the
// other side learns it when the client greets (ACCP-D77).
func TableSchema() accp.Schema {
	return accp.Schema{Name: "table", Code: SchemaTable, Version: 1, Fields: []string{"columns", "rows"},
		Abbr: map[string]string{"cols": "columns"}}
}

// A cell has a row as its only param, so that [accp.Marshal] and [accp.Unmarshal] convert rows of any form.
type cell[T any] struct {
	Row T `json:"row"`
}

// TableOf returns the params of a message with schema TB for a list of structs, [accp.Params], or maps with
// string keys (see [accp.Marshal]): the columns, which are all keys in ascending order, and the rows as
// lists. A member that a row lacks is null, and so is a member that is null (ACCP-D77).
func TableOf[T any](rows []T) (accp.Params, error) {
	list := make([]map[string]accp.Value, len(rows))
	columns := []string{}
	for i, row := range rows {
		params, err := rowParams(row)
		if err != nil {
			return nil, err
		}
		list[i] = make(map[string]accp.Value, len(params))
		for _, p := range params {
			if _, isTwice := list[i][p.Key]; isTwice {
				return nil, accp.Errorf(accp.ErrParse, "row %d has the key %.80q twice", i, p.Key)
			}
			list[i][p.Key] = p.Value
			columns = append(columns, p.Key)
		}
	}
	slices.Sort(columns)
	columns = slices.Compact(columns)
	names, values := make([]accp.Value, len(columns)), make([]accp.Value, len(rows))
	for i, name := range columns {
		names[i] = accp.String(name)
	}
	for i, members := range list {
		row := make([]accp.Value, len(columns))
		for k, name := range columns {
			row[k] = members[name]
		}
		values[i] = accp.Array(row...)
	}
	return accp.Params{{Key: "columns", Value: accp.Array(names...)}, {Key: "rows", Value: accp.Array(values...)},
		{Key: "schema", Value: accp.String(SchemaTable)}}, nil
}

// rowParams returns the members of a row.
func rowParams(row any) (accp.Params, error) {
	if p, ok := row.(accp.Params); ok {
		return p, nil
	}
	params, err := accp.Marshal(cell[any]{row})
	if err != nil {
		return nil, err
	}
	v, _ := params.Get("row")
	if v.Kind() != accp.KindMap {
		return nil, accp.Errorf(accp.ErrInvalidType, "a row is a %s, not a map", v.Kind())
	}
	return v.Entries(), nil
}

// RowsOf returns the rows of the params of a table as structs (see [accp.Unmarshal]), [accp.Params], or maps with
// string keys. A null is no member. Params of another form are [accp.ErrInvalidType].
func RowsOf[T any](table accp.Params) ([]T, error) {
	columns, _ := table.Get("columns")
	rows, _ := table.Get("rows")
	if columns.Kind() != accp.KindArray || rows.Kind() != accp.KindArray {
		return nil, accp.Errorf(accp.ErrInvalidType, "a table needs lists of columns and rows")
	}
	var names []string
	seen := make(map[string]bool)
	for _, c := range columns.Elements() {
		name, isText := c.Text()
		if !isText || seen[name] {
			return nil, accp.Errorf(accp.ErrInvalidType, "columns must be different strings")
		}
		seen[name] = true
		names = append(names, name)
	}
	out := []T{}
	for i, row := range rows.Elements() {
		params, ok := members(names, row)
		if !ok {
			return nil, accp.Errorf(accp.ErrInvalidType, "row %d does not have %d values", i, len(names))
		}
		var c cell[T]
		if p, ok := any(&c.Row).(*accp.Params); ok {
			*p = params
		} else if err := accp.Unmarshal(accp.Params{{Key: "row", Value: accp.Map(params...)}}, &c); err != nil {
			return nil, err
		}
		out = append(out, c.Row)
	}
	return out, nil
}

// members returns the members of a row that are not null, and false if it does not have a value for each column.
func members(names []string, row accp.Value) (params accp.Params, ok bool) {
	n := 0
	params = make(accp.Params, 0, len(names))
	for k, v := range row.Elements() {
		if k < len(names) && v.Kind() != accp.KindNull {
			params = append(params, accp.Param{Key: names[k], Value: v})
		}
		n++
	}
	return params, row.Kind() == accp.KindArray && n == len(names)
}
