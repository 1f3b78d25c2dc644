"""Encoders: texts in, vectors out. One module a backend; each loads its library when it is made."""
