package store

// ImportDir is where imports write, inside the database's directory.
const ImportDir = importDir

// SetImportFileBytes makes imports begin a new file after about n bytes.
func (p *Pebble) SetImportFileBytes(n uint64) { p.importFileBytes = n }
