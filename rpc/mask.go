package rpc

import (
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// mask returns the names of the patch's fields to change, in the order of the proto: those that the mask names, or
// without one those that are present. field is the patch's own name in the request.
func (v *violations) mask(field string, mask *fieldmaskpb.FieldMask, patch protoreflect.Message) []string {
	named := map[protoreflect.Name]bool{}
	for _, path := range mask.GetPaths() {
		name := protoreflect.Name(path)
		if patch.Descriptor().Fields().ByName(name) == nil {
			v.add("update_mask", "names %q, which is no field of %s", path, field)
			continue
		}
		named[name] = true
	}
	var names []string
	fields := patch.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if named[fd.Name()] || len(mask.GetPaths()) == 0 && patch.Has(fd) {
			names = append(names, string(fd.Name()))
		}
	}
	if len(names) == 0 && len(v.list) == 0 {
		v.add(field, "names no field to change")
	}
	return names
}
