"""What `holdfast demo` trains: a small transformer and the text it reads. Nothing else imports it."""
