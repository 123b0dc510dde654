"""Actions of the app: one base class of the app per subject."""
