// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"reflect"
	"slices"
)

// TableOf returns the params of a message with schema TB for a list of structs, [Params], or maps with
// string keys (see [Marshal]): the columns, which are all keys in ascending order, and the rows as
// lists. A member that a row lacks is null, and so is a member that is null (ACCP-D77).
func TableOf[T any](rows []T) (Params, error) {
	list := make([]Params, len(rows))
	columns := []string{}
	for i, row := range rows {
		var err error
		if list[i], err = rowParams(row); err != nil {
			return nil, err
		}
		for _, p := range list[i] {
			columns = append(columns, p.Key)
		}
	}
	slices.Sort(columns)
	columns = slices.Compact(columns)
	names, values := make([]Value, len(columns)), make([]Value, len(rows))
	for i, name := range columns {
		names[i] = String(name)
	}
	for i, params := range list {
		get := indexed(params)
		row := make([]Value, len(columns))
		for k, name := range columns {
			row[k], _ = get(name)
		}
		values[i] = Array(row...)
	}
	return Params{{"columns", Array(names...)}, {"rows", Array(values...)}, {keySchema, String(schemaTable)}}, nil
}

// rowParams returns the members of a row.
func rowParams(row any) (Params, error) {
	if p, ok := row.(Params); ok {
		return p, nil
	}
	v, err := valueOf(reflect.ValueOf(row))
	if err == nil && v.kind != KindMap {
		err = fail(ErrInvalidType, "a row is a %s, not a map", v.kind)
	}
	return v.list, err
}

// RowsOf returns the rows of the params of a table as structs (see [Unmarshal]), [Params], or maps with
// string keys. A null is no member. Params of another form are [ErrInvalidType].
func RowsOf[T any](table Params) ([]T, error) {
	columns, _ := table.Get("columns")
	rows, _ := table.Get("rows")
	if columns.kind != KindArray || rows.kind != KindArray {
		return nil, fail(ErrInvalidType, "a table needs lists of columns and rows")
	}
	seen := make(map[string]bool, columns.Len())
	for _, c := range columns.list {
		if c.Value.kind != KindString || seen[c.Value.text] {
			return nil, fail(ErrInvalidType, "columns must be different strings")
		}
		seen[c.Value.text] = true
	}
	out := make([]T, len(rows.list))
	for i, row := range rows.list {
		if row.Value.kind != KindArray || row.Value.Len() != columns.Len() {
			return nil, fail(ErrInvalidType, "row %d does not have %d values", i, columns.Len())
		}
		params := make(Params, 0, columns.Len())
		for k, x := range row.Value.list {
			if x.Value.kind != KindNull {
				params = append(params, Param{columns.list[k].Value.text, x.Value})
			}
		}
		if p, ok := any(&out[i]).(*Params); ok {
			*p = params
			continue
		}
		if err := setValue(reflect.ValueOf(&out[i]).Elem(), Map(params...)); err != nil {
			return nil, err
		}
	}
	return out, nil
}
