package metrics

import (
	"reflect"
	"slices"
	"strings"
)

// The tags of a field are: metric, its name; unit; help; and label, the key of the label by which
// a map or a struct counts. The label's values are the keys of the map, or the tags "is" of the
// struct's fields. Signed numbers are gauges, unsigned ones are counters. Structs without a
// metric of their own, and maps of them, contain others.

// field is a metric, and where in a TransportStats it is. Below a map, the index goes on in the map's elements.
type field struct {
	Desc
	index [][]int
}

// all has all metrics. Package reflect makes it possible to declare each in one place; it is
// not used where anything is counted.
var all = fields(reflect.TypeFor[TransportStats](), [][]int{nil}, nil)

// fields returns the metrics of a struct that can be found at an index, and has labels.
func fields(t reflect.Type, index [][]int, labels []string) (list []field) {
	last := len(index) - 1
	for i := range t.NumField() {
		f := t.Field(i)
		at := slices.Clone(index)
		at[last] = append(slices.Clone(at[last]), i)
		by := labels
		if l, ok := f.Tag.Lookup("label"); ok {
			by = append(slices.Clone(labels), l)
		}
		name, ok := f.Tag.Lookup("metric")
		switch {
		case ok:
			list = append(list, field{describe(name, f, by), at})
		case f.Type.Kind() == reflect.Map:
			list = append(list, fields(f.Type.Elem(), append(at, nil), by)...)
		case f.Type.Kind() == reflect.Struct:
			list = append(list, fields(f.Type, at, by)...)
		}
	}
	return list
}

func describe(name string, f reflect.StructField, labels []string) Desc {
	unit := f.Tag.Get("unit")
	if unit != "By" {
		unit = "{" + unit + "}"
	}
	t := f.Type
	switch t.Kind() {
	case reflect.Map:
		t = t.Elem()
	case reflect.Struct:
		t = t.Field(0).Type
	}
	return Desc{"fabricnet." + name, unit, f.Tag.Get("help"), t.Kind() == reflect.Uint64, labels}
}

// samples yields the values of a metric that is at an index in v.
func (f *field) samples(v reflect.Value, index [][]int, labels []string, yield func(Sample) bool) bool {
	v = v.FieldByIndex(index[0])
	one := func(label string, v reflect.Value) bool {
		by := append(slices.Clone(labels), label)
		if len(index) > 1 {
			return f.samples(v, index[1:], by, yield)
		}
		return yield(Sample{&f.Desc, by, number(v)})
	}
	switch v.Kind() {
	case reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, k := range keys {
			if !one(k.String(), v.MapIndex(k)) {
				return false
			}
		}
		return true
	case reflect.Struct:
		for i := range v.NumField() {
			if !one(v.Type().Field(i).Tag.Get("is"), v.Field(i)) {
				return false
			}
		}
		return true
	default:
		return yield(Sample{&f.Desc, labels, number(v)})
	}
}

// number returns a number that is not negative, or 0.
func number(v reflect.Value) uint64 {
	if v.CanInt() {
		return uint64(max(0, v.Int()))
	}
	return v.Uint()
}

// add adds the numbers of a struct to those of another.
func add(to, v reflect.Value) {
	switch {
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			add(to.Field(i), v.Field(i))
		}
	case v.CanInt():
		to.SetInt(to.Int() + v.Int())
	default:
		to.SetUint(to.Uint() + v.Uint())
	}
}

func clearGauges(v reflect.Value) {
	switch {
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			clearGauges(v.Field(i))
		}
	case v.CanInt():
		v.SetInt(0)
	}
}
